# Sourced by ./start and ./test: finds out what is missing and has the system's package manager install it.
# POSIX sh. It prints what it does; where it may not install, it prints the exact command and stops.
# FORESAY_INSTALL=no forbids installing.

say() { printf '%s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

manager=none
if have brew; then manager=brew
elif have apt-get; then manager=apt
elif have dnf; then manager=dnf
fi

# Homebrew keeps these out of pkg-config's default path; the Makefile does the same.
if [ $manager = brew ]; then
    for keg in libedit curl openssl@3; do
        PKG_CONFIG_PATH="$(brew --prefix)/opt/$keg/lib/pkgconfig:${PKG_CONFIG_PATH:-}"
    done
    export PKG_CONFIG_PATH
fi

has_compiler() { have "${CC:-cc}" || have gcc || have clang; }
has_library() { have pkg-config && pkg-config --exists "$1"; }

# A clang that can link a fuzz target (Apple's can't).
has_fuzzer() {
    have clang || return 1
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }' |
        clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
}

# A Python that has numpy: the one on the path, or the system's own.
find_python() {
    for PYTHON in python3 /usr/bin/python3 /opt/homebrew/bin/python3 /usr/local/bin/python3; do
        if have "$PYTHON" && "$PYTHON" -c 'import numpy, sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
            export PYTHON
            return 0
        fi
    done
    PYTHON=
    return 1
}

missing= # what is missing, for people
packages=

# need WHAT APT DNF BREW: a missing thing and the packages that bring it ("-": the system has it or can't)
need() {
    missing="$missing${missing:+, }$1"
    case $manager in
    apt) p=$2 ;;
    dnf) p=$3 ;;
    brew) p=$4 ;;
    *) p=- ;;
    esac
    [ "$p" = - ] || packages="$packages $p"
}

need_for_build() {
    has_compiler || need "a C compiler" "gcc libc6-dev" "gcc" "llvm"
    have make || need make make make make
    have pkg-config || need pkg-config pkg-config pkgconf-pkg-config pkgconf
    has_library libpcre2-8 || need PCRE2 libpcre2-dev pcre2-devel pcre2
    has_library libutf8proc || need utf8proc libutf8proc-dev utf8proc-devel utf8proc
    has_library libxxhash || need xxHash libxxhash-dev xxhash-devel xxhash
    has_library libedit || need libedit libedit-dev libedit-devel libedit
    has_library libcurl || need libcurl libcurl4-openssl-dev libcurl-devel curl
    has_library libcrypto || need OpenSSL libssl-dev openssl-devel openssl@3
}

need_for_tests() {
    has_library cmocka || need cmocka libcmocka-dev libcmocka-devel cmocka
    find_python || need "Python with numpy" "python3 python3-numpy" "python3 python3-numpy" "python numpy"
}

# Without these some tests are skipped, and counted as skipped. $1: where this machine's package lists are known
want_for_tests() {
    if ! has_fuzzer; then
        runtime=
        if [ $manager = apt ] && apt-cache show libclang-rt-dev >/dev/null 2>&1; then runtime=" libclang-rt-dev"; fi
        need "clang's fuzzer" "clang$runtime" "clang compiler-rt" -
    fi
    sanitizers_link || need "sanitizer runtimes" - "libasan libubsan libtsan" -
    "${PYTHON:-python3}" -m pip --version >/dev/null 2>&1 || need pip python3-pip python3-pip -
    have npm || have node || need npm npm nodejs-npm node
}

sanitizers_link() {
    has_compiler || return 0
    for s in address,undefined thread; do
        echo 'int main(void) { return 0; }' | "${CC:-cc}" -fsanitize=$s -x c - -o /dev/null 2>/dev/null || return 1
    done
}

# Installs $packages; $1 is "needed" (stop if that can't be done) or "wanted" (go on without)
install_missing() {
    [ -n "$missing" ] || return 0
    say "Missing: $missing."
    case $manager in
    apt) command="apt-get install -y --no-install-recommends$packages" ;;
    dnf) command="dnf install -y$packages" ;;
    brew) command="brew install$packages" ;;
    none)
        say "No package manager that this script knows (apt, dnf, brew) is here. Please install what is missing and run this again."
        [ "$1" = wanted ] && return 0
        exit 1
        ;;
    esac
    if [ -z "$packages" ]; then
        say "The system's package manager can't bring it; going on without."
        return 0
    fi
    sudo=
    may_install=yes
    if [ $manager != brew ] && [ "$(id -u)" != 0 ]; then
        sudo="sudo "
        # with a terminal sudo may ask for the password; without one it must not need to
        if ! have sudo; then may_install=no
        elif ! [ -t 0 ] && ! sudo -n true 2>/dev/null; then may_install=no
        fi
    fi
    [ "${FORESAY_INSTALL:-yes}" = no ] && may_install=no
    if [ $may_install = no ]; then
        say "Not allowed to install here. Please run this, then try again:"
        [ $manager = apt ] && say "    ${sudo}apt-get update"
        say "    $sudo$command"
        [ "$1" = wanted ] && return 0
        exit 1
    fi
    say "Installing: $sudo$command"
    [ $manager = apt ] && sudo="${sudo}env DEBIAN_FRONTEND=noninteractive "
    { { [ $manager != apt ] || ${sudo}apt-get update -qq; } && $sudo$command; } >build/install.log 2>&1 </dev/null && return 0
    tail -n 5 build/install.log
    say "That failed; build/install.log has the whole output."
    [ "$1" = wanted ] && return 0
    exit 1
}

processors() { getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }
