#!/bin/sh
# Builds the extension with AddressSanitizer and UndefinedBehaviourSanitizer beside the source tree's own, and runs the
# tests of the compiled operations with it. Usage: PYTHON=.venv/bin/python csrc/sanitize.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."
PYTHON=$(command -v "${PYTHON:-python3}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

suffix=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
includes="-Icsrc/include $("$PYTHON" -m pybind11 --includes)"
# -O1 keeps the build short; the vector code is the same. Alignment is left out: rows of any stride are read unaligned.
flags="-std=c++17 -O1 -g1 -fPIC -fvisibility=hidden -fopenmp -ffp-contract=off -fno-omit-frame-pointer
       -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -Wno-psabi"
for source in csrc/binding.cpp csrc/cpu/*.cpp; do
    echo "$source"
# shellcheck disable=SC2086
done | xargs -P "$(nproc)" -I{} sh -c "${CXX:-g++} $(echo $flags $includes) -c {} -o $work/\$(basename {} .cpp).o"
mkdir -p "$work/sglang_dspark"
# A package of links whose extension is the instrumented one.
for entry in sglang_dspark/*; do
    case $entry in *.so) ;; *) ln -s "$PWD/$entry" "$work/sglang_dspark/" ;; esac
done
${CXX:-g++} -shared -fopenmp -fsanitize=address,undefined "$work"/*.o -o "$work/sglang_dspark/_C$suffix"

# Python itself is not instrumented: the runtime has to come first, and its own leaks are not ours.
export LD_PRELOAD="$(${CXX:-g++} -print-file-name=libasan.so) $(${CXX:-g++} -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export PYTHONPATH="$work" OMP_WAIT_POLICY=PASSIVE DSPARK_FUZZ_TRIALS=1500
cp -r tests "$work/tests"
cp pyproject.toml "$work/"
cd "$work"
"$PYTHON" -c 'import sglang_dspark._C as c; print("instrumented:", c.__file__)'
# The tests of distributions draw tens of thousands of rounds by the same paths; they are left out for time.
"$PYTHON" -m pytest -q -p no:cacheprovider tests/ops -k "not torch and not follow and not biased and not fresh" "$@"
