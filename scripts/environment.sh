# Shared by quickstart.sh and test.sh: the virtual environment of this checkout, .venv or RLC_VENV. Sourced, not run.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${RLC_VENV:-$root/.venv}
needed_gib=5
export PIP_DISABLE_PIP_VERSION_CHECK=1

die() {
    echo "error: $1" >&2
    [[ -z ${2:-} ]] || echo "hint: $2" >&2
    exit 2
}

# help_if_asked TEXT ARGUMENT...: shows the text and the variables that every script reads if the first argument is --help.
help_if_asked() {
    local text=$1 first=${2:-}
    if [[ $first != --help && $first != -h ]]; then
        return
    fi
    printf '%s\n' "$text"
    cat <<'TEXT'

  RLC_TORCH    torch to install instead of the chosen build, such as "torch==2.13.0"
  RLC_PYTHON   Python 3.11 or newer to make the environment with
  RLC_VENV     folder of the environment instead of .venv
TEXT
    exit 0
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [[ -n ${RLC_PYTHON:-} ]]; then
        is_new_enough "$RLC_PYTHON" || die "RLC_PYTHON=\`$RLC_PYTHON\` is not Python 3.11 or newer"
        echo "$RLC_PYTHON"
        return
    fi
    for candidate in python3 python3.12 python3.13 python3.11 python3.14 python; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer was found" "install one, or name it: RLC_PYTHON=/path/to/python3.12"
}

check_disk() {
    local free_kib
    free_kib=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
    if ((free_kib < needed_gib * 1024 * 1024)); then
        die "$((free_kib / 1024)) MiB free in \`$root\`, the environment and the model need $needed_gib GiB" \
            "free some space, or clone to another disk"
    fi
}

make_venv() {
    local python
    if [[ -x $venv/bin/python ]] && is_new_enough "$venv/bin/python"; then
        return
    fi
    if [[ -e $venv ]]; then
        die "\`$venv\` holds no usable Python 3.11 or newer" "remove it and start again: rm -r $venv"
    fi
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "\`$python\` cannot make virtual environments" "on Debian or Ubuntu: apt install python3-venv"
    check_disk
    echo "creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
}

# install_project EXTRAS: installs the package without changing torch; does nothing if it is current.
install_project() {
    local extras=$1 held stamp wanted
    held=$(mktemp)
    "$venv/bin/python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >"$held"
    stamp=$venv/.installed${extras//[^a-z]/-}
    wanted=$(cat "$root/pyproject.toml" "$held" | cksum)
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
        rm -f "$held"
        return
    fi
    echo "installing rl_compat$extras"
    "$venv/bin/python" -m pip install --constraint "$held" --editable "$root$extras" || {
        rm -f "$held"
        die "pip could not install rl_compat$extras, its message is above" \
            "check the network, or point pip at an index or folder that can be reached (PIP_INDEX_URL, PIP_FIND_LINKS)"
    }
    rm -f "$held"
    echo "$wanted" >"$stamp"
}

prepare_environment() {
    make_venv
    "$root/scripts/install_torch.sh" "$venv/bin/python" || exit 2
    install_project "$1"
}
