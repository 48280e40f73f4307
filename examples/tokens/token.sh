#!/bin/sh
# Prints a token for the configuration beside it, valid for an hour, signed with
# the secret in the file `secret`, which is made on first use. Needs openssl.
#
#   sh token.sh USER [PLAN [TENANT]]
set -eu
user=${1:?usage: token.sh USER [PLAN [TENANT]]}
plan=${2:-}
tenant=${3:-}
cd "$(dirname "$0")"
[ -s secret ] || (umask 077 && openssl rand -base64 32 >secret)

base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
header=$(printf '{"alg":"HS256","typ":"JWT"}' | base64url)
claims=$(printf '{"iss":"https://login.example.com/","aud":"weather-api","exp":%d,"sub":"%s","plan":"%s","org":"%s"}' \
	"$(($(date +%s) + 3600))" "$user" "$plan" "$tenant" | base64url)
# The gateway takes the file's bytes without the last line break, and so does $().
signature=$(printf %s "$header.$claims" | openssl dgst -sha256 -hmac "$(cat secret)" -binary | base64url)
printf '%s\n' "$header.$claims.$signature"
