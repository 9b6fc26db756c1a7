#!/bin/sh
# Proves that the schedule fuzzer sees what it is there for: plants each fault of this folder into a copy of the
# sources, rebuilds what it touches, runs the fuzzer and demands a difference.
#   tests/mutation/run.sh [NAME...]
# A fault is a file NAME.fault (see apply.py). Copies stay in build/mutation/NAME, with the fuzzer's output in log.
# Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
make -s build/release/tests/property/schedule guard-models || exit 1
passed=0
failed=0
here=$(pwd)
fail() {
    echo "$1: FAILED: $2"
    failed=$((failed + 1))
}
for file in tests/mutation/*.fault; do
    name=$(basename "$file" .fault)
    if [ $# -gt 0 ]; then
        case " $* " in *" $name "*) ;; *) continue ;; esac
    fi
    copy=build/mutation/$name
    rm -rf "$copy"
    mkdir -p "$copy/build"
    # times are kept, so that make rebuilds only what the fault touches
    cp -Rp src tests tools Makefile "$copy" && cp -Rp build/release "$copy/build" || exit 1
    [ ! -d include ] || cp -Rp include "$copy"
    [ ! -e build/layers.ok ] || cp -p build/layers.ok "$copy/build"
    rm -rf "$copy/build/release/foresay"
    if ! arguments=$(python3 tests/mutation/apply.py "$file" "$copy"); then
        fail "$name" "the fault does not fit the sources any more"
        continue
    fi
    if ! make -s -C "$copy" build/release/tests/property/schedule >"$copy/make.log" 2>&1; then
        fail "$name" "does not compile, see $copy/make.log"
        continue
    fi
    began=$(date +%s)
    # shellcheck disable=SC2086
    (cd "$here" && "$copy/build/release/tests/property/schedule" $arguments) >"$copy/log" 2>&1
    status=$?
    if [ $status -eq 1 ] && grep -q '^DIFFERENCE: ' "$copy/log"; then
        echo "$name: caught in $(($(date +%s) - began)) s: $(sed -n 's/^DIFFERENCE: //p' "$copy/log")"
        passed=$((passed + 1))
    else
        fail "$name" "not caught (exit $status), see $copy/log"
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
