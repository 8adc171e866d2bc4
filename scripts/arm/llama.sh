# Sourced by scripts/arm/biglittle: llama.cpp's libraries for 64-bit Arm, from the sources that setup.sh compiles here.
# shellcheck shell=bash
# shellcheck disable=SC2154 # root and venv are biglittle's

llama_requirement=$(sed -n 's/^ *"\(llama-cpp-python==[0-9.]*\)".*/\1/p' "$root/pyproject.toml")
# The oldest 64-bit Arm: every vCPU model runs it, and fewer code paths make emulation no slower.
llama_options=(
  -DCMAKE_BUILD_TYPE=Release
  -DBUILD_SHARED_LIBS=ON
  -DGGML_NATIVE=OFF
  -DGGML_CPU_ARM_ARCH=armv8-a
  -DGGML_OPENMP=ON
  -DLLAMA_CURL=OFF
  -DLLAMA_BUILD_COMMON=OFF
  -DLLAMA_BUILD_TESTS=OFF
  -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_SERVER=OFF
  # The libraries find each other wherever their folder is mounted.
  "-DCMAKE_INSTALL_RPATH=\$ORIGIN"
  -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON
)

# Fills the empty folder $1 with libllama.so and what it needs; $2 is a scratch folder.
build_llama() {
  local into=$1 scratch=$2 sources=()
  say "compiling llama.cpp for 64-bit Arm, once: 2 to 8 minutes."
  with_progress "fetching llama.cpp's sources" "$venv/bin/python" -m pip download --disable-pip-version-check \
    --no-deps --no-binary llama-cpp-python --dest "$scratch" "$llama_requirement"
  with_progress "unpacking llama.cpp's sources" tar -xzf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch"
  sources=("$scratch"/llama_cpp_python-*/vendor/llama.cpp)
  with_progress "configuring llama.cpp" cmake -S "${sources[0]}" -B "$scratch/build" -G Ninja \
    "-DCMAKE_TOOLCHAIN_FILE=$root/scripts/arm/aarch64.cmake" "${llama_options[@]}"
  # CMake only warns when OpenMP is missing, and goes on with another thread pool than the one shipped.
  grep -q '^GGML_OPENMP_ENABLED:INTERNAL=ON' "$scratch/build/CMakeCache.txt" ||
    die "the cross compiler has no OpenMP, with which llama.cpp is shipped"
  with_progress "compiling llama.cpp" cmake --build "$scratch/build" -j "$(build_jobs)" --target llama
  with_progress "keeping the libraries" cp -P "$scratch"/build/bin/lib*.so* "$into"
}
