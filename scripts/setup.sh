# Sourced by scripts/edgespec and scripts/test: makes .venv beside pyproject.toml, once, and again when that changes.
# Everything it says goes to stderr: stdout belongs to the command. Works with bash 3.2 (macOS).
# shellcheck shell=bash

# Goes before the user's CMAKE_ARGS when llama.cpp is compiled: the multimodal library is not used.
cmake_args="-DLLAVA_BUILD=OFF"
# Read by CMake when llama-cpp-python's project starts. It forces the "common" library on, a third of the work, which
# nothing here uses; a plain variable goes before a forced cache entry (CMake policies CMP0077 and CMP0126).
cmake_code="set(LLAMA_BUILD_COMMON OFF)"
python_names="python3.13 python3.12 python3.11 python3 python"

say() { printf 'edgespec: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# The folder above the real file $1, symbolic links followed: the checkout.
checkout_of() {
  local file=$1 link
  while [ -L "$file" ]; do
    link=$(readlink "$file")
    case $link in
      /*) file=$link ;;
      *) file=${file%/*}/$link ;;
    esac
  done
  case $file in */*) ;; *) file=./$file ;; esac
  (cd -- "${file%/*}/.." && pwd -P)
}

# Prints the first Python >= 3.11 that can make environments. Shims that exist but fail (pyenv) are passed over.
find_python() {
  local name test='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
  if [ -n "${EDGESPEC_PYTHON:-}" ]; then
    "$EDGESPEC_PYTHON" -c "$test" >/dev/null 2>&1 ||
      die "EDGESPEC_PYTHON=$EDGESPEC_PYTHON is not a Python >= 3.11 with the venv module."
    command -v -- "$EDGESPEC_PYTHON"
    return
  fi
  for name in $python_names; do
    if command -v "$name" >/dev/null && "$name" -c "$test" >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
  die "no Python >= 3.11 with the venv module on PATH: install one (Debian: python3 python3-venv), or set EDGESPEC_PYTHON."
}

# What the environment was made from. Cheap: it runs before every command.
stamp_text() {
  printf 'at %s\n' "$root"
  cksum <"$root/pyproject.toml"
  cksum <"$root/scripts/setup.sh"
  cat "$root"/edgespec/kernels/c/* 2>/dev/null | cksum # they are compiled by set-up
}

is_ready() {
  [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(<"$stamp")" = "$(stamp_text)" ]
}

# Waits until no other process sets up this checkout. The lock belongs to descriptor 9, so it ends with this process.
lock_setup() {
  { exec 9>"$root/.venv.lock"; } 2>/dev/null || die "cannot write to $root, where .venv is to be made."
  "$1" - 9>&9 <<'PY' || die "cannot lock $root/.venv.lock."
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("edgespec: another set-up of this checkout is running; waiting for it.", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
PY
}

# Runs a command with its output in $log; says every 30 s that it still runs; shows the errors if it fails.
with_progress() {
  local what=$1 began=$SECONDS ticker status=0
  shift
  (
    # The sleep outlives its killed parent: it must not hold the caller's pipes open.
    while sleep 30 >/dev/null 2>&1; do
      say "  ... $what, $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s so far"
    done
  ) </dev/null 9>&- &
  ticker=$!
  # Descriptor 9 is closed: a compiler cache's daemon must not keep the lock.
  "$@" >>"$log" 2>&1 </dev/null 9>&- || status=$?
  { kill "$ticker" && wait "$ticker"; } 2>/dev/null
  if [ "$status" -ne 0 ]; then
    grep -i 'error' "$log" | tail -n 4 >&2
    die "$what failed; without a network that is expected, else all output is in $log"
  fi
}

# Prints the name of this machine's folder in the wheel cache: a build for one processor may crash on another.
wheel_key() {
  "$1" - "$requirement" "$2" <<'PY'
import hashlib, os, pathlib, platform, sys, sysconfig
try:
    lines = pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
except OSError:
    lines = [platform.processor()]
flags = sorted({line for line in lines if line.startswith(("flags", "Features", "CPU part", "isa"))}) or lines[:1]
built_by = [os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS")]
facts = [*sys.argv[1:], sysconfig.get_platform(), *platform.libc_ver(), *flags, *built_by]
print(sys.argv[1].replace("==", "-"), platform.machine(), hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16], sep="-")
PY
}

# Prints the one intact wheel in folder $2, or nothing.
wheel_in() {
  "$1" - "$2" <<'PY'
import pathlib, sys, zipfile
for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.testzip() is None:
                print(wheel)
                break
    except (OSError, zipfile.BadZipFile):
        pass  # a half-written or damaged wheel is built again
PY
}

# At most one compiler for each 700 MB of memory: small boards run out otherwise.
build_jobs() {
  local cpus kib
  cpus=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
  kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null)
  if [ -n "$kib" ] && [ $((kib / 700000)) -lt "$cpus" ]; then cpus=$((kib / 700000)); fi
  [ "$cpus" -ge 1 ] || cpus=1
  echo "$cpus"
}

has_compiler() {
  local name
  for name in ${CXX:+"$CXX"} c++ g++ clang++; do
    # shellcheck disable=SC2086 # CXX may carry arguments
    if echo 'int main() { return 0; }' | $name -x c++ - -o "$work/probe" >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

# Compiles llama-cpp-python once for this machine into the user's cache and sets $wheel to the file.
build_wheel() {
  local args="$cmake_args${CMAKE_ARGS:+ $CMAKE_ARGS}" folder began=$SECONDS
  requirement=$(sed -n 's/^ *"\(llama-cpp-python==[0-9.]*\)".*/\1/p' "$root/pyproject.toml")
  folder=${XDG_CACHE_HOME:-${HOME:-$work}/.cache}/edgespec/wheels/$(wheel_key "$venv/bin/python" "$args $cmake_code") ||
    die "cannot name a wheel folder"
  wheel=$(wheel_in "$venv/bin/python" "$folder")
  if [ -n "$wheel" ]; then return; fi
  has_compiler || die "llama.cpp is compiled here, and no C++ compiler works: install one (Debian: apt install build-essential; Termux: pkg install clang cmake ninja; macOS: xcode-select --install)."
  say "compiling llama.cpp for this processor, once: 2 to 8 minutes on a laptop, longer on a small board."
  echo "$cmake_code" >"$work/edgespec.cmake"
  CMAKE_ARGS="$args '-DCMAKE_PROJECT_llama_cpp_INCLUDE=$work/edgespec.cmake'" \
    CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(build_jobs)} \
    with_progress "compiling llama.cpp" "$venv/bin/python" -m pip wheel --disable-pip-version-check \
    --no-cache-dir --no-deps --wheel-dir "$work/wheel" "$requirement"
  wheel=$(wheel_in "$venv/bin/python" "$work/wheel")
  [ -n "$wheel" ] || die "pip made no wheel of $requirement (all output: $log)"
  say "compiled in $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s; kept in $folder"
  if mkdir -p "$folder" 2>/dev/null && cp "$wheel" "$folder/.part" 2>/dev/null &&
    mv "$folder/.part" "$folder/${wheel##*/}"; then
    wheel=$folder/${wheel##*/}
  else
    say "cannot write to $folder: the compiled wheel is not kept for next time."
  fi
}

make_venv() {
  local python=$1 site=
  if [ -e "$venv" ] && [ ! -f "$venv/.made-by-edgespec" ]; then
    die "$venv exists and was not made by this script: move it away first."
  fi
  rm -rf "$venv"
  { mkdir "$venv" && : >"$venv/.made-by-edgespec"; } || die "cannot make $venv"
  # On Android numpy, psutil and onnxruntime come from Termux's packages: there are no wheels.
  if [ -n "${TERMUX_VERSION:-}" ]; then site=--system-site-packages; fi
  with_progress "making .venv" "$python" -m venv $site "$venv"
}

# Installs the wheel, edgespec and the rest. A wheel of the same version but built otherwise replaces the one there.
install_all() (
  cd "$root" || exit 1
  pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
  if [ "$(cat "$venv/.wheel" 2>/dev/null)" != "$wheel" ]; then
    with_progress "installing llama.cpp" "${pip[@]}" --force-reinstall --no-deps "$wheel"
    printf '%s\n' "$wheel" >"$venv/.wheel"
  fi
  with_progress "installing" "${pip[@]}" "$wheel" -e ".${extra:+[$extra]}"
)

# Compiles edgespec's own kernels into the user's cache and tries them. Without them everything works: no error ends
# the set-up.
build_kernels() {
  local said
  if said=$("$venv/bin/python" -P -m edgespec kernels build 2>&1 </dev/null 9>&-); then
    say "kernels for cheap drafts: built, and they give ggml's results bit for bit"
  else
    said=${said##*$'\n'} said=${said#edgespec: }
    say "kernels for cheap drafts: none, ggml's own are used (${said:-building them ended without a word})"
  fi
}

# Makes the environment of checkout $1 ready, with the extra $2 if it is given. Sets $root and $venv.
set_up() {
  local extra=${2:-} python began=$SECONDS work log stamp wheel requirement
  root=$1 venv=$1/.venv
  stamp=$venv/.ready${extra:+-$extra}
  if is_ready; then return; fi
  python=$(find_python) || exit 1
  lock_setup "$python"
  if is_ready; then # the process waited for has done it
    exec 9>&-
    return
  fi
  work=$(mktemp -d) || die "cannot make a temporary folder"
  log=$work/setup.log
  # shellcheck disable=SC2064 # $work is local: expanded now
  trap "keep_log '$work'" EXIT
  trap 'say "set-up interrupted; the next start takes it up again."; exit 130' INT
  say "setting up $venv with $python"
  if [ ! -x "$venv/bin/python" ] || ! grep -qsxF "at $root" "$venv"/.ready*; then make_venv "$python"; fi
  build_wheel
  say "installing edgespec and what it needs"
  install_all || exit 1
  build_kernels
  { stamp_text >"$stamp.new" && cp "$stamp.new" "$venv/.ready" && mv "$stamp.new" "$stamp"; } ||
    die "cannot write to $venv"
  say "ready after $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s"
  trap - EXIT INT
  rm -rf "$work"
  exec 9>&-
}

# A set-up that failed leaves its log, and only that.
keep_log() {
  if [ -s "$1/setup.log" ]; then
    find "$1" -mindepth 1 ! -name setup.log -delete 2>/dev/null
  else
    rm -rf "$1"
  fi
}
