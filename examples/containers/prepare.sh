#!/bin/sh
# Makes the folders that compose.yaml mounts, for a trial: a study, keys and certificates, of three tables.
# Usage: sh prepare.sh COLUMN north.csv south.csv west.csv
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$1
shift

mkdir -p "$here/coordinator"
consilience study new trial --like "$1" --target "$target" --folder "$here/coordinator"
for table in "$@"; do
  name=$(basename "$table" .csv)
  mkdir -p "$here/$name"
  cp "$table" "$here/$name/$name.csv"
  cp "$here/coordinator/trial.toml" "$here/$name/"
  (cd "$here/$name" && consilience site join trial.toml "$name" "$name.csv")
  (cd "$here/coordinator" && consilience study add trial.toml "$here/$name/$name.join")
done
(cd "$here/coordinator" && consilience study certs trial.toml --host coordinator --host 127.0.0.1)
cp "$here/coordinator.toml" "$here/coordinator/"
mv "$here/coordinator/certs/ca.key" "$here/" # to renew the certificates; no container sees it
echo "CONSILIENCE_USER=$(id -u):$(id -g)" > "$here/.env"
for table in "$@"; do
  name=$(basename "$table" .csv)
  cp "$here/coordinator/trial.toml" "$here/coordinator/certs/ca.crt" "$here/$name/"
  mv "$here/coordinator/certs/$name.node" "$here/$name/"
  sed "s/NAME/$name/" "$here/site.toml" > "$here/$name/site.toml"
done
