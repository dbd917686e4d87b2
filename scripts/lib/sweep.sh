# shellcheck shell=bash
# Finding what is left of a bed: for `down`, which removes it, and for the leak check, which reports it.

# Programs that engines start and that may outlive them. Anything else that mentions the bed (an
# editor, a `tail -f`, a client) is none of ours to end.
ENGINE_PROGRAMS='dockerd|docker-proxy|docker-init|containerd|containerd-shim(-runc-v2)?|runc|runsc|runsc-sandbox|runsc-gofer|conmon|podman|netavark|aardvark-dns|catatonit|postgres'

# Stamps of engine processes whose command line names the bed's run directory or network.
engine_processes() {
  local directory pid arguments
  for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    mapfile -d '' -t arguments 2>/dev/null <"$directory/cmdline" || continue
    [[ " ${arguments[*]}" == *"$BED_RUN/"* || " ${arguments[*]} " == *" 10.$BED_OCTET."* ]] || continue
    [[ ${arguments[0]##*/} =~ ^($ENGINE_PROGRAMS)$ ]] && stamp "$pid"
  done
  return 0
}

# Stamps of processes in the cgroups of this bed's Docker containers, gVisor's sandboxes included.
container_processes() {
  local file pid
  for file in $(bed_cgroups | sed 's#$#/cgroup.procs#'); do
    while read -r pid; do stamp "$pid" || true; done 2>/dev/null <"$file" || true
  done | sort -u
}

# The cgroup directories of this bed, children first: one tree per controller, or one in all (v2).
bed_cgroups() {
  local tree
  for tree in /sys/fs/cgroup/"cofer-bed-$BED_OCTET" /sys/fs/cgroup/*/"cofer-bed-$BED_OCTET"; do
    [[ -d $tree ]] && find "$tree" -depth -type d
  done
  return 0
}

# Processes that a test started and forgot: they inherited the bed's address in their environment.
test_processes() {
  local directory pid
  for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    ((pid == $$ || pid == PPID)) && continue
    grep -qsF "COFER_TEST_DOCKER_HOST=unix://$BED_RUN/" "$directory/environ" || continue
    stamp "$pid" || true
  done
}

# Mount points below the bed's directories, innermost first.
bed_mounts() {
  awk '{ print $5 }' /proc/self/mountinfo | grep -E "^($BED_RUN|$BED/docker|$BED/podman)(/|$)" | sort -r || true
}

describe() { # STAMP
  local arguments=()
  mapfile -d '' -t arguments 2>/dev/null <"/proc/${1%% *}/cmdline" || true
  printf '%s %.100s\n' "${1%% *}" "${arguments[*]}"
}

# Kills what outlived its engine, until a look around finds nothing more.
sweep_processes() {
  local found process attempt
  for attempt in 1 2 3 4 5 6 7 8 9 10; do
    mapfile -t found < <(engine_processes && container_processes)
    ((${#found[@]})) || return 0
    for process in "${found[@]}"; do
      is_alive "$process" || continue # it ended along with another
      ((attempt > 1)) || warn "left running, killing it: $(describe "$process")"
      kill -s KILL "${process%% *}" 2>/dev/null || true
    done
    sleep 0.2
  done
  warn "could not end: ${found[*]}"
  return 1
}

sweep_mounts() {
  local mount
  bed_mounts | while read -r mount; do umount "$mount" 2>/dev/null || umount -l "$mount" || true; done
}

sweep_cgroups() {
  local directory
  bed_cgroups | while read -r directory; do rmdir "$directory" 2>/dev/null || true; done
}

# One line for each thing that is left of the bed on the machine; silent when all is clean.
remains() {
  local line table
  while read -r line; do [[ -n $line ]] && echo "process $(describe "$line")"; done \
    < <(engine_processes && container_processes && test_processes)
  bed_mounts | sed 's/^/mount /'
  bed_cgroups | sed 's/^/cgroup /'
  bed_links | sed 's/^/network link /'
  for table in filter nat mangle raw; do bed_rules "$table" | sed "s/^/firewall rule in $table: /"; done
  [[ -e $BED_RUN ]] && echo "directory $BED_RUN"
  return 0
}

# One line for each container, volume or network that tests left in an engine which is still up.
leftovers() {
  local engine
  for engine in docker podman; do
    engine_is_healthy "$engine" || continue
    "bed_$engine" ps -a --format "$engine container {{.ID}} {{.Image}} {{.Names}} {{.Status}}"
    "bed_$engine" volume ls --format "$engine volume {{.Name}}"
    "bed_$engine" network ls --format '{{.Name}}' | grep -vxE 'bridge|host|none|podman' | sed "s/^/$engine network /" || true
  done
}
