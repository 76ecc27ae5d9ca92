#!/bin/sh
# Inside the guest: run the payload, print its exit code on the serial line, power off.
cd /payload || exit 1
./run.sh
echo "vm: payload exit $?"
systemctl poweroff --no-block
