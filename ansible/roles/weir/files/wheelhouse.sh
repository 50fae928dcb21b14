#!/bin/sh
# On the controller: one archive of Weir's wheel and those of all it needs, so that nodes need no
# package index. Built from the checkout, once for each state of it; or packed from a folder of
# wheels that was made elsewhere. Prints `ID ARCHIVE built|there`; the id changes with the content.
# Usage: wheelhouse.sh PYTHON CHECKOUT BUILD-FOLDER EXTRAS [WHEELS]
set -euf
python=$1 checkout=$2 folder=$3 extras=$4 wheels=${5:-}
sources="control lua nginx setup.cfg pyproject.toml"
beside="README.md LICENSE"  # in the wheel, and of no consequence

digest() { # digest FOLDER NAME...: of all files below, whatever their times
    (
        cd "$1"
        shift
        find "$@" -type f ! -name '*.pyc' | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-12
    )
}

[ -z "$wheels" ] || [ -d "$wheels" ] || {
    echo "weir_wheelhouse: $wheels is not a folder: make one with pip wheel --wheel-dir" >&2
    exit 1
}
mkdir -p "$folder"
if [ -n "$wheels" ]; then
    id=$(digest "$wheels" .)
else
    # shellcheck disable=SC2086 # words
    id=$(digest "$checkout" $sources)${extras:+-$(echo "$extras" | tr , -)}
fi
archive=$folder/$id.tar
if [ -e "$archive" ]; then
    echo "$id $archive there"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "$wheels" ]; then
    # A copy: a build in place would take up what earlier ones have left there.
    mkdir "$scratch/weir"
    # shellcheck disable=SC2086
    tar -C "$checkout" -cf - $sources $beside | tar -C "$scratch/weir" -xf -
    wheels=$scratch/wheels
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-input \
        --wheel-dir "$wheels" "$scratch/weir${extras:+[$extras]}"
fi
tar -C "$wheels" -cf "$archive.part" .
mv "$archive.part" "$archive"
echo "$id $archive built"
