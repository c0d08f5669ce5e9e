# Numbers and verdicts for scripts that measure; sourced by them.

field() { sed -n "s/.*\"$1\":\(-\{0,1\}[0-9.e+-]*\).*/\1/p"; }                          # name of a number; JSON on stdin
percentile() { sed -n "s/.*\"$1\":{[^}]*\"$2\":\([0-9.e+-]*\).*/\1/p"; }                 # object, percentile
median() { sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "nan" }'; }
calc() { awk "BEGIN { printf \"%.3g\", $1 }"; }
holds() { awk "BEGIN { exit !($1) }"; }

declare -A runs
collect() { runs[$1]+="$2"$'\n'; }       # name, one measured value
m() { printf '%s' "${runs[$1]}" | median; }

rows=()
kept=true
row() { # promise, measured, condition
    local verdict=pass
    holds "$3" || { verdict=FAIL; kept=false; }
    rows+=("$(printf '%-62s %-34s %s' "$1" "$2" "$verdict")")
    echo "${rows[-1]}"
}
note() { printf '%-62s %s\n' "$1" "$2"; } # what, measured; without verdict
