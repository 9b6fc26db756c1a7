#!/bin/sh
# fuzz-schedule.sh PROGRAM HOURS: sessions of the schedule fuzzer with fresh seeds over all models in turn, until
# the time is up or something differs. Each session prints its seed; SCALE multiplies the rows.
set -u
program=$1
hours=$2
scale=${SCALE:-1}
end=$(($(date +%s) + $(awk "BEGIN { print int($hours * 3600) }")))
sessions=0
while :; do
    for spec in models/demo:40000:5000 tests/golden/models/qwen35-moe-mtp:20000:2000 build/models/tiny:60000:5000 build/models/thin-0.8B:20000:1300 build/models/thin-27B:3000:140; do
        model=${spec%%:*}
        rest=${spec#*:}
        [ -d "$model" ] || continue
        "$program" "$model" --rows $((${rest%%:*} * scale)) --tokens "${rest#*:}" || exit 1
        sessions=$((sessions + 1))
        [ "$(date +%s)" -lt $end ] || break 2
    done
done
echo "$sessions sessions, nothing differs"
