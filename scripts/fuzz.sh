#!/usr/bin/env bash
# Runs every fuzz target of the module (or of PACKAGES) for FUZZTIME (10s) each, one after the other.
set -euo pipefail

fuzztime=${FUZZTIME:-10s}
ran=0
packages=$(go list ${PACKAGES:-./...})
for package in $packages; do
  listed=$(go test -list '^Fuzz' "$package")
  for target in $(grep '^Fuzz' <<<"$listed" || true); do
    echo "== $package $target"
    # Else an input whose coverage wavers is minimized for a minute, which is all the time there is.
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" -fuzzminimizetime 20x "$package"
    ran=$((ran + 1))
  done
done
echo "$ran fuzz targets, $fuzztime each"
((ran > 0))
