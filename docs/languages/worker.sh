#!/bin/sh
# Work under a lock. Usage: worker.sh HOLDFAST LOCK RESOURCE WRITES
set -eu
base=$1/v1/locks/$2 resource=$3 writes=$4 ttl=${TTL:-30} # seconds; LOCK is percent-encoded
[ "$ttl" -gt 25 ] || { echo "TTL is $ttl, and must be more than 25 (seconds)" >&2; exit 1; }
step=$((ttl / 5)) # a renewal and its retry take four steps at most, from the one before it; then a write may take 5 s more

# The lease ID is made before it is sent: the same request, sent again, is the same acquisition.
lease=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
keeper=

finish() {
	[ -z "$keeper" ] || kill "$keeper" 2>/dev/null || :
	curl -sS -o /dev/null --max-time 5 -X DELETE "$base/leases/$lease" || :
}
trap finish EXIT
trap 'exit 1' INT TERM

renew() { curl -fsS -o /dev/null --max-time "$step" -X PUT "$base/leases/$lease" -d "{\"ttl\":\"${ttl}s\"}"; }

# keep renews until this shell, which is $$, has ended: also by SIGKILL. It ends this shell when the lease cannot be kept.
keep() {
	while kill -0 $$ 2>/dev/null; do
		renew || renew || { kill $$; return; }
		sleep "$step" </dev/null >/dev/null 2>&1
	done
}

while :; do
	# Keep-Place keeps the turn in the queue until the next request.
	answer=$(curl -sS --max-time 90 -w '\n%{http_code}' -H 'Holdfast-Keep-Place: 10s' "$base" \
		-d "{\"lease\":\"$lease\",\"ttl\":\"${ttl}s\",\"wait\":\"60s\",\"owner\":\"worker.sh:$$\"}") || { sleep 1; continue; }
	case ${answer##*
} in
	200) break ;;
	409 | 429 | 503) sleep 1 ;; # held by others after the wait; overloaded; unavailable
	*) printf '%s\n' "$answer" >&2; exit 1 ;;
	esac
done
token=$(printf '%s' "$answer" | sed -n 's/.*"token":\([0-9]*\).*/\1/p')
renew # what is left of the TTL counts from the request, which may have waited
keep &
keeper=$!
echo "token $token"

i=0
while [ $((i += 1)) -le "$writes" ]; do
	status=$(curl -sS -o /dev/null -w '%{http_code}' --max-time 5 -X PUT "$resource" -H "Holdfast-Token: $token" -d "write $i")
	case $status in
	2??) ;;
	412) echo "refused: the resource has seen a greater token" >&2; exit 1 ;;
	*) echo "the write failed with status $status" >&2; exit 1 ;;
	esac
	sleep 0.2
done
