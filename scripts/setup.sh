#!/usr/bin/env bash
# Installs what real Kafka clusters need and this machine lacks: a JDK (17 or later), Maven, kcat; or what the arguments name: ip,
# venv (Python's). Debian's packages, by apt-get, as root; does nothing where all is there.
set -euo pipefail

declare -A packages=([java]=default-jdk-headless [mvn]=maven [kcat]=kcat [ip]=iproute2 [venv]=python3-venv)
(($#)) || set -- java mvn kcat
missing=()
for command in "$@"; do
  if [[ $command == venv ]]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null && continue
  else
    command -v "$command" >/dev/null && continue
  fi
  missing+=("${packages[$command]}")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  echo "setup: please install ${missing[*]} (names of Debian packages), or run this as root on a Debian machine." >&2
  exit 1
fi
echo "setup: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
for try in 1 2 3; do # an archive may be away for a moment, and somebody else be installing
  if apt-get -qq -o Acquire::Retries=3 update &&
    apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends "${missing[@]}" >/dev/null; then
    exit 0
  fi
  ((try == 3)) || sleep 5
done
exit 1
