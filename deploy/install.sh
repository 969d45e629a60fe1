#!/bin/sh
# What the container image consists of: deploy/Dockerfile runs this and nothing else, and
# tests/integration/test_deploy_install.py runs it into an empty folder, so that what was tested is
# what an image contains.
#
#   install.sh --prefix DIR [--source DIR] [--extra NAME] [--root DIR] [--wheels DIR]
#              [--jars-below DIR]
#
#   --prefix      a virtual environment is made there; it must not exist
#   --source      this repository (default: the folder above this script)
#   --extra       of pyproject.toml: pipeline
#   --root        folder of the image's file system: gets the user's line in etc/, the data folder
#                 and Python's library compiled
#   --wheels      folder with all packages, which are then taken from nowhere else
#   --jars-below  folder that holds PySpark somewhere: ZooKeeper's jars are copied from there
#
# PYTHON names the interpreter, SOURCE_DATE_EPOCH (seconds) the time that all files get.
set -eu
umask 022

prefix='' source='' extra='' root='' wheels='' jars_below=''
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:-} ;;
        --source) source=${2:-} ;;
        --extra) extra=${2:-} ;;
        --root) root=${2:-} ;;
        --wheels) wheels=${2:-} ;;
        --jars-below) jars_below=${2:-} ;;
        *) echo "install.sh: $1: unknown" >&2; exit 2 ;;
    esac
    [ -n "${2:-}" ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
    shift 2
done
[ -n "$prefix" ] || { echo "install.sh: --prefix is needed" >&2; exit 2; }
[ ! -e "$prefix" ] || { echo "install.sh: $prefix exists" >&2; exit 2; }
source=$(cd "${source:-$(dirname "$0")/..}" && pwd)
python=${PYTHON:-python3}
epoch=${SOURCE_DATE_EPOCH:-0}
user=10001
export SOURCE_DATE_EPOCH="$epoch" PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
if [ -n "$wheels" ]; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="$wheels"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The project is built from a copy: a build writes beside its sources, which may be read-only.
mkdir "$work/source"
for name in pyproject.toml README.md metadata bookkeeper managed_ledger bundles loadbalance broker \
    pipeline magnetar; do
    cp -R "$source/$name" "$work/source/"
done
find "$work/source" -name __pycache__ -type d -prune -exec rm -rf {} +
# Whatever builds it is pinned, too: the variable's older name is of pip before 25.3.
printf '%s\n' setuptools==84.2.1 Cython==3.3.1 >"$work/build.txt"
export PIP_CONSTRAINT="$work/build.txt" PIP_BUILD_CONSTRAINT="$work/build.txt"
"$python" -m pip wheel -q --no-deps -w "$work/built" "$work/source"
built=$(echo "$work"/built/magnetar-*.whl)

# Without pip: an image that is made doesn't change.
"$python" -m venv --without-pip "$prefix"
"$python" -m pip --python "$prefix/bin/python" install -q --no-compile \
    -c "$source/constraints.txt" "$built${extra:+[$extra]}"

packages=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Where our own wheel came from: a folder that is another one each time.
rm "$packages"/magnetar-*.dist-info/direct_url.json
sed -i '/direct_url.json/d' "$packages"/magnetar-*.dist-info/RECORD
# Nothing of these is ever read: other packages' tests, and what their libraries were built of.
find "$packages" -mindepth 2 -type d \( -name tests -o -name test \) \
    -not -path '*/pyspark/*' -prune -exec rm -rf {} +
find "$packages" -type f \( -name '*.c' -o -name '*.cpp' -o -name '*.pyx' -o -name '*.pxd' \) \
    -not -path '*/pyspark/*' -delete
# Debugging symbols are a quarter of everything.
"$python" "$source/deploy/strip_symbols.py" "$packages"
# By their sources' hashes and not by times, which a copy may change.
"$prefix/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$packages"

if [ -n "$jars_below" ]; then
    jars=$(find -L "$jars_below" -type d -path '*/pyspark/jars' -prune)
    # The server and what it loads; Netty is for TLS alone. PySpark's other jars are 40 times that.
    mkdir -p "$prefix/share/zookeeper"
    for name in zookeeper zookeeper-jute slf4j-api log4j-api log4j-core log4j-slf4j2-impl \
        log4j-layout-template-json metrics-core snappy-java audience-annotations netty-buffer \
        netty-codec netty-codec-base netty-common netty-handler netty-resolver netty-transport \
        netty-transport-classes-epoll netty-transport-native-unix-common; do
        cp "$jars/$name"-[0-9]*.jar "$prefix/share/zookeeper/"
    done
fi

if [ -n "$root" ]; then
    # A name for the number: Java's libraries want one. Runtimes may choose another number.
    mkdir -p "$root/etc" "$root/var/lib/magnetar"
    grep -v '^magnetar:' /etc/passwd >"$root/etc/passwd"
    grep -v '^magnetar:' /etc/group >"$root/etc/group"
    echo "magnetar:x:$user:$user:Magnetar:/var/lib/magnetar:/usr/sbin/nologin" >>"$root/etc/passwd"
    echo "magnetar:x:$user:" >>"$root/etc/group"
    chmod 0750 "$root/var/lib/magnetar"
    # Not root: a rehearsal, whose folder is for whoever rehearses.
    [ "$(id -u)" -ne 0 ] || chown "$user:$user" "$root/var/lib/magnetar"
    "$python" "$source/deploy/compile_library.py" "$root"
fi

find "$prefix" ${root:+"$root"} -exec touch -h -d "@$epoch" {} +
chmod -R a+rX,a-w "$prefix"
du -sm "$prefix" | sed 's/\t.*/ MiB in the environment/'
