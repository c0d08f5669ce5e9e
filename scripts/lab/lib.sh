# Code shared by the labs in QEMU guests; sourced by bash scripts with `set -euo pipefail` that define `say` and
# `skip`. A guest consists of Debian's kernel, unpacked but never installed, and of programs copied from this machine.

# Finds the kernel of Debian's linux-image-amd64: sets kernel_release (as uname -r) and kernel_version (of the
# package). Calls `skip` with a reason if there is none.
debian_kernel() {
    command -v apt-cache >/dev/null || skip "this is no Debian: the guest is made of Debian's packages"
    kernel_release=$(apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: linux-image-\([0-9].*-amd64\)$/\1/p' | head -n 1)
    [ -n "$kernel_release" ] || skip "apt knows no linux-image-amd64: the guest needs Debian on x86-64 (apt-get update may help)"
    kernel_version=$(apt-cache policy "linux-image-$kernel_release" | sed -n 's/.*Candidate: //p')
}

# need_tools TOOL...: skips if a tool is missing.
need_tools() {
    local tool
    for tool in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || skip "$tool is not installed; as root: scripts/setup"
    done
}

# fetch PACKAGE=VERSION... DIR: downloads packages into DIR.
fetch() {
    local dir=${!#}
    # As root, apt switches to the user _apt. This user may not enter the directory, so apt prints a warning, and goes
    # on.
    (cd "$dir" && apt-get download -qq "${@:1:$#-1}") 2>"$dir/apt.log" ||
        { cat "$dir/apt.log" >&2; skip "apt-get cannot fetch ${*:1:$#-1}"; }
}

# unpack_kernel DEB DIR: the kernel's modules to DIR/lib/modules, the uncompressed kernel to DIR/vmlinux.
unpack_kernel() {
    local image offset
    dpkg-deb -x "$1" "$2"
    image=$2/boot/vmlinuz-$kernel_release
    # QEMU boots an uncompressed kernel much faster if it has to emulate the processor.
    offset=$(LC_ALL=C grep -abom1 $'\xfd7zXZ' "$image" | head -n 1 | cut -d: -f1) || true
    [ -z "$offset" ] || tail -c +$((offset + 1)) "$image" | xz -dc >"$2/vmlinux" 2>/dev/null || true
    readelf -h "$2/vmlinux" >/dev/null 2>&1 || cp "$image" "$2/vmlinux"
    PATH=$PATH:/usr/sbin:/sbin depmod -b "$2" "$kernel_release"
}

# module_files DIR MODULE...: lists the files of modules and of their dependencies, in the order in which they load.
module_files() {
    local dir=$1 module
    shift
    for module in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin modprobe -d "$dir" -S "$kernel_release" --show-depends "$module"
    done | sed -n 's|^insmod \([^ ]*\).*|\1|p' | awk '!seen[$0]++'
}

# put_module FILE TARGET: copies a module, uncompressed.
put_module() {
    case $1 in
        *.xz) xz -dc "$1" ;;
        *) cat "$1" ;;
    esac >"$2"
}

# put ROOT FILE...: copies files to the same paths below ROOT; symbolic links stay symbolic links.
put() {
    local root=$1 file link
    shift
    for file in "$@"; do
        file=$(realpath "$(dirname "$file")")/$(basename "$file")
        [ ! -e "$root$file" ] && [ ! -L "$root$file" ] || continue
        mkdir -p "$root$(dirname "$file")"
        cp -d "$file" "$root$file"
        [ ! -L "$file" ] || {
            link=$(readlink "$file")
            case $link in /*) ;; *) link=$(dirname "$file")/$link ;; esac
            put "$root" "$link"
        }
    done
}

# libraries_of PROGRAM...: lists the shared libraries that the programs load.
libraries_of() { ldd "$@" 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' | sed 's/:$//' | sort -u || true; }

# put_busybox ROOT: puts busybox under all its names into /bin.
put_busybox() {
    local applet
    mkdir -p "$1/bin"
    install "$(command -v busybox)" "$1/bin/busybox"
    for applet in $("$1/bin/busybox" --list | grep -vx busybox); do ln -sf busybox "$1/bin/$applet"; done
}

# pack ROOT FILE: makes an initramfs of the files below ROOT.
pack() { (cd "$1" && find . -print0 | sort -z | cpio -0 -o -H newc --quiet -R 0:0) >"$2"; }

# Sets accel: QEMU's options for the processor.
accelerator() {
    # A paravirtual /dev/kvm, on a processor without virtualisation of its own, cannot run this kernel.
    accel=(-accel tcg,thread=multi -cpu max,la57=off)
    if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=(-accel kvm -cpu host); fi
}

# QEMU's options for the interface over which `guest` talks to a shell in the guest.
readonly COMMANDS=(-netdev "user,id=commands,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:2001-10.0.2.15:1"
    -device "virtio-net-pci,netdev=commands,romfile=,mac=52:54:00:77:00:01")

# wait_for_guest PID CONSOLE ERRORS: waits until the guest reports that it is ready, two minutes at most.
wait_for_guest() {
    local began=$SECONDS
    until grep -aq '^lab: ready' "$2" 2>/dev/null; do
        kill -0 "$1" 2>/dev/null || { cat "$3" "$2" 2>/dev/null; say "QEMU ended"; exit 1; }
        [ $((SECONDS - began)) -lt 120 ] || { tail -n 20 "$2"; say "the guest does not come up"; exit 1; }
        sleep 0.1
    done
    # The guest's shell is ready a moment later.
    until guest true 2>/dev/null; do
        kill -0 "$1" 2>/dev/null && [ $((SECONDS - began)) -lt 120 ] || { say "the guest's shell does not answer"; exit 1; }
        sleep 0.1
    done
    say "$(grep -a '^lab: ready' "$2" | tr -d '\r') after $((SECONDS - began)) s"
}

# guest COMMAND: runs a command in the guest, and passes on its output and status. A guest that is silent for longer
# than any command may take is treated as dead.
guest() {
    local fd line last=''
    exec {fd}<>/dev/tcp/127.0.0.1/2001
    printf '{ %s\n} </dev/null 2>&1\nstatus=$?; echo; echo "lab-status $status"\nexit\n' "$*" >&$fd
    while IFS= read -r -t 400 line <&$fd; do
        case $line in
            # The status ends the loop. The connection may stay open, because a process that still runs in the guest may
            # hold it.
            'lab-status '*) last=${line#lab-status }; break ;;
            *) [ -z "$line" ] || printf '%s\n' "$line" ;;
        esac
    done
    exec {fd}>&-
    return "${last:-1}"
}
# Runs a command in the background of the guest. `guest_wait NAME` prints its output and returns its status.
guest_start() { # NAME COMMAND
    guest "rm -f /tmp/$1.*; (timeout 300 $2 >/tmp/$1.log 2>&1 & echo \$! >/tmp/$1.pid; wait \$!; echo \$? >/tmp/$1.status) >/dev/null 2>&1 &"
}
guest_wait() { guest "i=0; until [ -s /tmp/$1.status ] || [ \$i -gt 3000 ]; do usleep 100000; i=\$((i + 1)); done; cat /tmp/$1.log; exit_status=\$(cat /tmp/$1.status); (exit \${exit_status:-1})"; }
guest_says() { # NAME TEXT [TIMES]
    local there="[ \$(grep -c '$2' /tmp/$1.log) -ge ${3:-1} ]"
    guest "i=0; until $there || [ -s /tmp/$1.status ] || [ \$i -gt 600 ]; do usleep 50000; i=\$((i + 1)); done; $there"
}
