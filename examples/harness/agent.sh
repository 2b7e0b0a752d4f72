#!/bin/sh
# One rollout with nothing but curl: a question, a reward for the right answer, the end.
#
#   sh agent.sh http://127.0.0.1:8317
set -eu

rollout="${1:?usage: sh agent.sh http://HOST:PORT}/r/shell-$$-$(date +%s)"

post() {
    curl --silent --show-error --fail-with-body "$rollout/$1" \
        -H 'content-type: application/json' -H "authorization: Bearer ${OPENAI_API_KEY:-unused}" -d "$2"
}

answer=$(post v1/chat/completions '{"model": "any", "messages": [{"role": "user", "content": "What is 64+16?"}], "max_tokens": 40}')
case "$answer" in
    *80*) value=1 ;;
    *) value=0 ;;
esac
post reward "{\"value\": $value, \"reward_id\": \"answer\"}"
post end '{}'
