# shellcheck shell=bash
# Putting a root file system together from programs of this machine and the libraries they load.

# A merged /usr, busybox under all its names, the user `mcp`, and /data, which that user may write.
base_rootfs() { # ROOTFS
  local directory
  mkdir -p "$1"/usr/{bin,sbin,lib,lib64,local/bin} "$1"/{etc,proc,sys,dev,run,root,var} "$1/home/mcp" "$1/data"
  for directory in bin sbin lib lib64; do ln -s "usr/$directory" "$1/$directory"; done
  install -d -m 1777 "$1/tmp" "$1/var/tmp"
  chown 1000:1000 "$1/home/mcp" "$1/data"
  printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'mcp:x:1000:1000:mcp:/home/mcp:/bin/sh' >"$1/etc/passwd"
  printf '%s\n' 'root:x:0:' 'mcp:x:1000:' >"$1/etc/group"
  printf '%s\n' 'hosts: files dns' >"$1/etc/nsswitch.conf"
  copy_program "$1" "$(command -v busybox)" /usr/bin/busybox
  "$1/usr/bin/busybox" --list | grep -vx busybox | while read -r directory; do
    ln -s busybox "$1/usr/bin/$directory"
  done
}

# A program under a name of its own, and its libraries where its loader will look for them.
copy_program() { # ROOTFS SOURCE DESTINATION
  mkdir -p "$(dirname "$1$3")"
  install -m 755 "$(readlink -f "$2")" "$1$3"
  { ldd "$2" 2>/dev/null || true; } | copy_libraries "$1" # a static program has none
}

# Reads what `ldd` printed. Libraries outside the system's directories are bundled with their users.
copy_libraries() { # ROOTFS
  local library
  { grep -oE '[[:space:]]/(usr/)?lib[^ ]*' || true; } | tr -d '[:blank:]' | sort -u | while read -r library; do
    [[ -e $1$library ]] && continue
    mkdir -p "$(dirname "$1$library")"
    cp -L "$library" "$1$library"
  done
}

copy_tree() { # SOURCE DESTINATION TAR-OPTIONS...
  mkdir -p "$2"
  tar -C "$1" "${@:3}" -cf - . | tar -C "$2" --no-same-owner -xf -
}
