# shellcheck shell=bash disable=SC2034
# What the scripts of this folder share. They run in the root of the repository.

set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

TARGET=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
# The date of everything that is built; cargo-cyclonedx reads it.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
# Removed at the end.
SCRATCH=$(mktemp --directory)
readonly TARGET SOURCE_DATE_EPOCH SCRATCH
trap 'rm -rf "$SCRATCH"' EXIT
# LC_ALL decides the order of files.
export SOURCE_DATE_EPOCH LC_ALL=C
# The same files give the same archive.
readonly TAR=(tar --create --format=ustar --sort=name "--mode=u=rwX,go=rX" --owner=0 --group=0 --numeric-owner "--mtime=@$SOURCE_DATE_EPOCH")

version() {
    sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1
}

# revision: the commit, and whether the tree has other changes.
revision() {
    git describe --always --abbrev=40 --match='' --dirty=-modified
}

# need PROGRAM...: fails with the name of Debian's package if a program is missing.
need() {
    local program
    for program in "$@"; do
        if ! command -v "$program" >/dev/null; then
            echo "$program is missing: apt-get install $program" >&2
            return 1
        fi
    done
}
