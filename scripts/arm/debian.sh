# Sourced by scripts/arm/biglittle: kernel, modules, busybox and Python for 64-bit Arm, out of Debian's packages.
# Nothing is installed and nothing of it runs here: packages are fetched by a private apt and unpacked.
# shellcheck shell=bash
# shellcheck disable=SC2154 # venv and log are biglittle's

guest_packages=(python3 python3-numpy python3-jinja2 python3-typing-extensions libstdc++6 libgomp1)
# 9p: folders of the host; cpufreq-dt: clocks from the device tree; bcm2711_thermal: the sensor of a Raspberry Pi 4.
guest_modules=(virtio_mmio 9pnet_virtio 9p cpufreq-dt bcm2711_thermal)

# Fills the empty folder $1 with vmlinuz, busybox, mod/ and root/; $2 is a scratch folder.
build_debian() {
  local into=$1 scratch=$2 image tree=$1/root deb
  local options=(-o "Dir::State=$scratch/state" -o "Dir::State::status=$scratch/status" -o "Dir::Cache=$scratch/cache"
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
  mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial" "$scratch/get" "$into/mod" || return
  : >"$scratch/status"
  say "fetching a kernel and Python for 64-bit Arm, once: about 100 MB."
  with_progress "reading Debian's package lists" apt-get "${options[@]}" -o APT::Update::Error-Mode=any update
  # The package named here is empty and depends on the newest kernel. The cloud kernel lacks the sensor's driver.
  image=$(apt-cache "${options[@]}" depends linux-image-arm64 2>>"$log" |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*-arm64\)$/\1/p' | head -n 1)
  [ -n "$image" ] || die "Debian's package lists name no kernel for arm64: do the configured sources offer arm64?"
  cd "$scratch/get" || return
  with_progress "fetching $image" apt-get "${options[@]}" download "$image" busybox-static
  with_progress "fetching Python" apt-get "${options[@]}" install --yes --download-only "${guest_packages[@]}"
  for deb in "$scratch"/get/*.deb; do
    with_progress "unpacking ${deb##*/}" dpkg-deb -x "$deb" "$scratch/kernel"
  done
  # Maintainer scripts do not run: the links that they would make are made here.
  mkdir -p "$tree"/usr/{bin,sbin,lib} "$tree"/{proc,sys,dev,tmp,repo,site,llama,data} &&
    ln -s usr/bin usr/sbin usr/lib "$tree" || return
  for deb in "$scratch"/cache/archives/*.deb; do
    with_progress "unpacking ${deb##*/}" dpkg-deb -x "$deb" "$tree"
  done
  for deb in blas lapack; do
    ln -s "$deb/lib$deb.so.3" "$tree/usr/lib/aarch64-linux-gnu/lib$deb.so.3" || return
  done
  # After Debian's own: what is compiled for the host is shadowed, what is pure Python is found.
  echo /site >"$tree/usr/lib/python3/dist-packages/edgespec.pth" || return
  # Compiling in the guest takes minutes. Of use where both Pythons are of one version; harmless elsewhere.
  with_progress "compiling Python's library" "$venv/bin/python" -m compileall -qq -s "$tree" \
    --invalidation-mode unchecked-hash "$tree"/usr/lib/python3* || return
  cp "$scratch"/kernel/boot/vmlinuz-* "$into/vmlinuz" && cp "$scratch"/kernel/*bin/busybox "$into/busybox" || return
  : >"$into/mod/order"
  for deb in "${guest_modules[@]}"; do
    add_module "$scratch/kernel" "$into/mod" "$deb"
  done
}

# Copies module $3 of the kernel unpacked in $1 into $2, after those it depends on, and notes the order in $2/order.
add_module() {
  local kernel=$1 into=$2 name=${3//_/-} file needed
  # A module's file may be spelled with _ or with -.
  file=$(find "$kernel" -name "${name//-/[-_]}.ko*" | head -n 1)
  if [ -z "$file" ]; then
    grep -qs "/${name//-/[-_]}\.ko$" "$kernel"/*/modules/*/modules.builtin "$kernel"/usr/lib/modules/*/modules.builtin ||
      die "Debian's kernel has no module $name"
    return
  fi
  if grep -qxF "$name" "$into/order"; then return; fi
  case $file in
    *.xz) xz -dc "$file" >"$into/$name.ko" ;;
    *) cp "$file" "$into/$name.ko" ;;
  esac || die "cannot unpack the module $name"
  for needed in $(tr '\0' '\n' <"$into/$name.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do
    add_module "$kernel" "$into" "$needed"
  done
  echo "$name" >>"$into/order"
}
