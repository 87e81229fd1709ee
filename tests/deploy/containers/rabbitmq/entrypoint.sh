#!/bin/sh
# As the image rabbitmq: its first user and password come from two variables.
set -e
printf 'default_user = %s\ndefault_pass = %s\nloopback_users = none\n' \
    "${RABBITMQ_DEFAULT_USER:-guest}" "${RABBITMQ_DEFAULT_PASS:-guest}" > /etc/rabbitmq/rabbitmq.conf
exec "$@"
