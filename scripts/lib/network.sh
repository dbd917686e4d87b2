# shellcheck shell=bash
# The bed's share of the machine's network: one bridge and one /16, claimed so that two beds (two
# clones tested at once) never collide, and given back completely.
#
#   10.N.0.0/24     the Docker bridge cofer-bed-N; creating that link is what claims N
#   10.N.1.0/24     Podman's default network, bridge cofer-pod-N
#   10.N.64.0/18    networks that tests create in Docker
#   10.N.128.0/17   networks that tests create in Podman
#
# So whatever mentions 10.N. or one of these bridges is ours. The chains named DOCKER* and NETAVARK*
# are shared by all engines of the machine; they go when the last engine has gone.

HOST_RECORD=/run/cofer-bed-host # how the machine was before the first bed; shared by all beds
HOST_LOCK=/run/cofer-bed-host.lock

# Runs a function with the lock that all beds of the machine share.
with_host_lock() {
  (
    flock -w 60 8 || die "another bed has held $HOST_LOCK for a minute; is one hanging?"
    "$@"
  ) 8>"$HOST_LOCK"
}

claim_network() {
  with_host_lock claim_network_locked || die "no free 10.N.0.0/16 between 10.200 and 10.249; are old beds still up?"
}

claim_network_locked() {
  local octet used
  record_host_before
  used=$(ip -4 -o address show && ip -4 route show table all)
  for octet in {200..249}; do
    [[ $used == *"10.$octet."* ]] && continue
    ip link add "cofer-bed-$octet" type bridge 2>/dev/null || continue
    remember BED_BRIDGE "cofer-bed-$octet"
    remember BED_OCTET "$octet"
    ip address add "10.$octet.0.1/24" dev "cofer-bed-$octet" && ip link set "cofer-bed-$octet" up
    return
  done
  return 1
}

record_host_before() {
  [[ -e $HOST_RECORD ]] && return
  {
    printf 'ip_forward=%s\n' "$(</proc/sys/net/ipv4/ip_forward)"
    printf 'forward_policy=%s\n' "$(iptables -w -S FORWARD | sed -n 's/^-P FORWARD //p')"
    mountpoint -q /run/netns && echo netns_is_mount=1 || echo netns_is_mount=0
  } >"$HOST_RECORD"
}

release_network() {
  [[ -n $BED_OCTET ]] || return 0
  with_host_lock release_network_locked
}

release_network_locked() {
  local link links
  links=$(bed_links) # their names are needed once more, to find the rules that mention them
  for link in $links; do ip link delete "$link" 2>/dev/null || true; done
  delete_bed_rules "$links"
  other_engine_present || restore_host
}

# Every link that carries one of the bed's addresses, and its bridges even if they lost theirs.
bed_links() {
  {
    ip -4 -o address show | awk -v ours="10.$BED_OCTET." 'index($4, ours) == 1 { print $2 }'
    ip -o link show type bridge | awk -F': ' '{ print $2 }' | grep -xE "cofer-(bed|pod)-$BED_OCTET" || true
  } | sort -u
}

bed_rules() { # TABLE [LINKS]
  local links="cofer-bed-$BED_OCTET|cofer-pod-$BED_OCTET${2:+|${2//$'\n'/|}}"
  iptables -w -t "$1" -S 2>/dev/null | grep -E "^-A .*( 10\.$BED_OCTET\.| ($links)( |$))" || true
}

delete_bed_rules() { # LINKS
  local table
  for table in filter nat mangle raw; do
    # xargs, because comments in rules are quoted.
    bed_rules "$table" "$1" | sed 's/^-A/-D/' | xargs -r -L1 iptables -w -t "$table" 2>/dev/null || true
    delete_chains "$table" '^NETAVARK-' # of one network each; the kernel refuses while one is in use
  done
}

# A chain that is in use or not empty is refused by the kernel, which is what we want.
delete_chains() { # TABLE PATTERN
  local chain
  for chain in $(iptables -w -t "$1" -S 2>/dev/null | awk '$1 == "-N" { print $2 }' | grep -E "$2" || true); do
    iptables -w -t "$1" -X "$chain" 2>/dev/null || true
  done
}

other_engine_present() {
  local pid
  for pid in $(pgrep -x dockerd); do started_at "$pid" >/dev/null && return 0; done # our own may be a zombie still
  ip -o link show type bridge | awk -F': ' '{ print $2 }' | grep -qE '^(docker0|podman[0-9]+|cofer-(bed|pod)-[0-9]+)$'
}

# No engine is left, so the chains they shared are dead, and forwarding is as it was before them.
restore_host() {
  local table pattern='(DOCKER|NETAVARK)[A-Z0-9_-]*' ip_forward='' forward_policy='' netns_is_mount=1
  for table in filter nat mangle raw; do
    iptables -w -t "$table" -S 2>/dev/null | grep -E "^-A ($pattern |.* -j $pattern( |$))" |
      sed 's/^-A/-D/' | xargs -r -L1 iptables -w -t "$table" 2>/dev/null || true
    delete_chains "$table" "^$pattern\$"
  done
  [[ -e $HOST_RECORD ]] || return 0
  # shellcheck source=/dev/null
  source "$HOST_RECORD"
  iptables -w -P FORWARD "${forward_policy:-ACCEPT}"
  printf '%s\n' "${ip_forward:-0}" >/proc/sys/net/ipv4/ip_forward
  # Podman mounts this directory onto itself; one with namespaces in it has other users by now.
  if ((!netns_is_mount)) && mountpoint -q /run/netns && [[ -z $(ls /run/netns) ]]; then umount /run/netns; fi
  rm -f "$HOST_RECORD"
}
