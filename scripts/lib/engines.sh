# shellcheck shell=bash
# How each of the three private engines is configured, started, asked whether it is ready, and
# stopped. Nothing of the machine's own Docker, Podman or PostgreSQL is read, used or changed.

READY_SECONDS_MAX=60

# Starts a command in a session of its own, so that Ctrl-C in the terminal is ours to handle.
launch() { # NAME COMMAND...
  local name=$1
  shift
  setsid "$@" >>"$BED/logs/$name.log" 2>&1 </dev/null 9>&- &
  stamp $! >"$BED/pids/$name" || true # already dead: `await_ready` will say so
}

await_ready() { # NAME
  local deadline=$((SECONDS + READY_SECONDS_MAX))
  until "$1_is_ready"; do
    if ! is_alive "$(<"$BED/pids/$1")"; then
      warn "$1 ended while starting; the end of $BED/logs/$1.log:"
    elif ((SECONDS >= deadline)); then
      warn "$1 was not ready after $READY_SECONDS_MAX s; the end of $BED/logs/$1.log:"
    else
      sleep 0.1
      continue
    fi
    tail -n 25 "$BED/logs/$1.log" | sed "s/^/  $1: /" >&2
    return 1
  done
}

engine_is_healthy() { # NAME
  [[ -f $BED/pids/$1 ]] && is_alive "$(<"$BED/pids/$1")" && "$1_is_ready"
}

# --- Docker -------------------------------------------------------------------------------------

docker_is_ready() {
  curl -fsS -m 5 -o /dev/null --unix-socket "$BED_RUN/docker.sock" http://docker/_ping 2>/dev/null
}

docker_start() {
  write_runsc_wrapper
  echo '{}' >"$BED_RUN/daemon.json" # so that the machine's own daemon.json has no say
  rm -rf "$BED/docker/network"      # networks of an earlier bed name a bridge that is gone
  docker_launch
  docker_remove_everything # what a killed run may have left in the image cache's data root
}

docker_launch() {
  launch docker dockerd --config-file "$BED_RUN/daemon.json" \
    --data-root "$BED/docker" --exec-root "$BED_RUN/docker" --pidfile "$BED_RUN/docker.pid" \
    -H "unix://$BED_RUN/docker.sock" \
    --bridge "$BED_BRIDGE" --default-address-pool "base=10.$BED_OCTET.64.0/18,size=24" \
    --cgroup-parent "/cofer-bed-$BED_OCTET" \
    --add-runtime "runsc=$BED_RUN/runsc" \
    --default-ulimit nofile=4096:4096 --shutdown-timeout 5
  await_ready docker
}

# The flags that let an old gVisor run without KVM and on kernels it does not know. "host" is the
# container's own network namespace here, not the machine's.
write_runsc_wrapper() {
  printf '#!/bin/sh\nexec %s %s "$@"\n' "$(command -v runsc)" \
    "${COFER_TEST_RUNSC_FLAGS:---platform=ptrace --network=host}" >"$BED_RUN/runsc"
  chmod 755 "$BED_RUN/runsc"
}

# Containers, volumes and networks; images stay.
docker_remove_everything() {
  {
    bed_docker ps -aq | xargs -r "$ROOT/scripts/testbed" docker rm -fv
    bed_docker volume ls -q | xargs -r "$ROOT/scripts/testbed" docker volume rm -f
    bed_docker network prune -f
  } >/dev/null
}

# --- Podman -------------------------------------------------------------------------------------

podman_is_ready() {
  curl -fsS -m 5 -o /dev/null --unix-socket "$BED_RUN/podman.sock" http://podman/_ping 2>/dev/null
}

podman_start() {
  write_podman_configuration
  rm -rf "$BED/podman/libpod" # the database: it remembers an earlier run directory, and refuses ours
  podman_launch
  podman_forget_orphans
}

podman_launch() {
  launch podman env -C "$BED_RUN" "CONTAINERS_CONF=$BED_RUN/containers.conf" "CONTAINERS_STORAGE_CONF=$BED_RUN/storage.conf" \
    podman system service --time=0 "unix://$BED_RUN/podman.sock"
  await_ready podman
}

# Containers of a run that was killed, which the new database does not know but the storage does.
podman_forget_orphans() {
  [[ $(jq length "$BED/podman/overlay-containers/containers.json" 2>/dev/null || echo 0) == 0 ]] ||
    bed_podman ps -aq --external | xargs -r "$ROOT/scripts/testbed" podman rm -f >/dev/null
}

# Locks are files, because the default is one piece of shared memory for the whole machine.
write_podman_configuration() {
  cat >"$BED_RUN/containers.conf" <<EOF
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "$BED_RUN/libpod-tmp"
volume_path = "$BED_RUN/podman-volumes"
[network]
network_backend = "netavark"
network_config_dir = "$BED_RUN/podman-networks"
default_subnet = "10.$BED_OCTET.1.0/24"
default_subnet_pools = [{ base = "10.$BED_OCTET.128.0/17", size = 24 }]
EOF
  cat >"$BED_RUN/storage.conf" <<EOF
[storage]
driver = "overlay"
graphroot = "$BED/podman"
runroot = "$BED_RUN/podman-run"
EOF
  write_podman_network
}

# Written out only to name the bridge: the built-in network would share podman0 with every bed.
write_podman_network() {
  mkdir -p "$BED_RUN/podman-networks"
  cat >"$BED_RUN/podman-networks/podman.json" <<EOF
{
  "name": "podman",
  "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
  "driver": "bridge",
  "network_interface": "cofer-pod-$BED_OCTET",
  "created": "2024-01-01T00:00:00Z",
  "subnets": [{ "subnet": "10.$BED_OCTET.1.0/24", "gateway": "10.$BED_OCTET.1.1" }],
  "ipv6_enabled": false,
  "internal": false,
  "dns_enabled": false,
  "ipam_options": { "driver": "host-local" }
}
EOF
}

podman_remove_everything() {
  {
    bed_podman rm -f -a -v -t 0
    bed_podman pod rm -f -a
    bed_podman volume rm -f -a
    bed_podman network prune -f
  } >/dev/null
}

# --- PostgreSQL ---------------------------------------------------------------------------------

postgres_is_ready() { bed_psql -c 'select 1' >/dev/null 2>&1; }

# PostgreSQL refuses to run as root. The cluster is made anew each time: that takes a second, and
# a user of another name could not reach a directory inside a private checkout.
postgres_start() {
  local data=$BED_RUN/postgres user
  user=$(postgres_user)
  install -d -o "$user" -m 700 "$data"
  as_user "$user" initdb -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >>"$BED/logs/postgres.log" 2>&1
  launch postgres setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \
    "$(command -v postgres)" -D "$data" -p "$BED_POSTGRES_PORT" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories="$data" -c max_connections=200 \
    -c fsync=off -c synchronous_commit=off -c full_page_writes=off
  await_ready postgres
}

postgres_user() { id -u postgres >/dev/null 2>&1 && echo postgres || echo nobody; }

as_user() { # USER COMMAND...
  (cd / && setpriv --reuid "$1" --regid "$(id -g "$1")" --clear-groups "${@:2}")
}

# The network number is ours alone, so the port derived from it is rarely taken.
choose_postgres_port() {
  local port=$((15000 + BED_OCTET))
  while [[ -n $(ss -Hltn "sport = :$port") ]]; do port=$((port + 100)); done
  remember BED_POSTGRES_PORT "$port"
}
