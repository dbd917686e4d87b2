# shellcheck shell=bash
# What all test-bed scripts share: where the bed lives, what is written down about it, and how to
# tell a process of ours from a stranger that was later given the same process id.
#
#   .testbed/            kept between runs, git-ignored (or $COFER_TESTBED_DIR)
#     state              where the running bed is; present from the first moment of `up` to the end of `down`
#     pids/NAME          "PID START-TIME" of each engine
#     logs/NAME.log      what the engine said
#     docker/ podman/    image caches
#     tools/             MCP servers and clients from npm and PyPI
#   /tmp/cofer-bed.*/    sockets and run-time files; short, because a socket's path has 107 bytes at most

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
BED=${COFER_TESTBED_DIR:-$ROOT/.testbed}
mkdir -p "$BED/pids" "$BED/logs" "$BED/tools"
BED=$(cd "$BED" && pwd -P)
TOOLS=$BED/tools

say() { printf '%s\n' "testbed: $*"; }
warn() { printf '%s\n' "testbed: $*" >&2; }
die() {
  warn "$*"
  exit 1
}

# Dockerd, Podman and PostgreSQL live in sbin and version directories that a plain PATH may lack.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
for directory in /usr/lib/postgresql/*/bin; do PATH=$PATH:$directory; done
export PATH

# A Python that can make virtual environments, Debian's own first: it is the quickest to start.
find_python() {
  local python
  for python in /usr/bin/python3 python3; do
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  die "no python3 with venv here; run scripts/install-test-tools"
}

# --- The state file -----------------------------------------------------------------------------

# Sets BED_RUN, BED_OCTET, BED_BRIDGE, BED_POSTGRES_PORT and BED_OWNER; false when there is no bed.
load_state() {
  BED_RUN='' BED_OCTET='' BED_BRIDGE='' BED_POSTGRES_PORT='' BED_OWNER=''
  [[ -f $BED/state ]] || return 1
  # shellcheck source=/dev/null
  source "$BED/state"
}

remember() { printf '%s=%q\n' "$1" "$2" >>"$BED/state"; }

# --- Processes ----------------------------------------------------------------------------------

# Start time of a live process in clock ticks since boot; fails for the dead and for zombies.
started_at() {
  local line fields
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -ra fields <<<"${line##*) }" # the name before the bracket may hold spaces
  [[ ${fields[0]} != Z ]] && printf '%s\n' "${fields[19]}"
}

# "PID START-TIME": a name for a process that no later process can have.
stamp() {
  local start
  start=$(started_at "$1") && printf '%s %s\n' "$1" "$start"
}

# Is the process with this stamp still the one running under that id?
is_alive() {
  local pid=${1%% *} start=${1##* }
  [[ -n $pid && $(started_at "$pid") == "$start" ]]
}

# Asks politely with the given signal, waits, and kills after the grace period.
end_process() {
  local stamp=$1 signal=$2 grace_seconds=$3 deadline=$((SECONDS + $3))
  is_alive "$stamp" || return 0
  kill -s "$signal" "${stamp%% *}" 2>/dev/null || true
  while is_alive "$stamp" && ((SECONDS < deadline)); do sleep 0.05; done
  is_alive "$stamp" || return 0
  warn "process ${stamp%% *} ignored SIG$signal for $grace_seconds s; killing it"
  kill -s KILL "${stamp%% *}" 2>/dev/null || true
  while is_alive "$stamp"; do sleep 0.05; done
}

# --- Clients of the bed's engines ---------------------------------------------------------------

bed_docker() { DOCKER_CONFIG=$BED_RUN/docker-client DOCKER_CONTEXT='' docker -H "unix://$BED_RUN/docker.sock" "$@"; }

# From inside the run directory, because a container that runs out of memory drops a file named
# `oom` wherever its Podman was started.
bed_podman() {
  env -C "$BED_RUN" "CONTAINERS_CONF=$BED_RUN/containers.conf" "CONTAINERS_STORAGE_CONF=$BED_RUN/storage.conf" \
    podman "$@"
}

bed_psql() { psql -X -q -h 127.0.0.1 -p "$BED_POSTGRES_PORT" -U postgres -d postgres "$@"; }
