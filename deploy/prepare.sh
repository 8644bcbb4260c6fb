#!/bin/sh
# Makes what docker-compose.yml mounts: certificates, SuperNode keys, SuperExec secrets, folders. Files that exist stay.
#   sh deploy/prepare.sh [FOLDER]     FOLDER: where to put them; by default the folder of this script
#   SUPERLINK_NAMES="fl.example.org"  further host names of the SuperLink, separated by spaces
# In a real federation every silo makes its own key, certificate and secret, and hands out its *.pub file only.
set -eu
folder=${1:-$(dirname "$0")}
secrets=$folder/secrets
days=365
mkdir -p "$secrets" "$folder/state" "$folder/runs"
private=""

# $1: file of a private key, $2: its common name; further arguments go to `openssl req`
key() {
    file=$1 name=$2
    shift 2
    (umask 077 && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$file" "$@") \
        2>"$secrets/openssl.log" || { cat "$secrets/openssl.log" >&2; exit 1; }
    rm -f "$secrets/openssl.log"
}

secret() {
    [ -e "$secrets/$1" ] || (umask 077 && openssl rand -hex 32 >"$secrets/$1")
    private="$private $secrets/$1"
}

if [ ! -e "$secrets/ca.key" ]; then
    key "$secrets/ca.key" "fedpriv CA" -x509 -days "$days" -out "$secrets/ca.crt" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
fi

if [ ! -e "$secrets/superlink.key" ]; then
    names="DNS:superlink,DNS:localhost,IP:127.0.0.1"
    for name in ${SUPERLINK_NAMES:-}; do names="$names,DNS:$name"; done
    key "$secrets/superlink.key" superlink -out "$secrets/superlink.csr"
    cat >"$secrets/superlink.ext" <<EXTENSIONS
subjectAltName=$names
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
EXTENSIONS
    openssl x509 -req -in "$secrets/superlink.csr" -CA "$secrets/ca.crt" -CAkey "$secrets/ca.key" -CAcreateserial \
        -days "$days" -extfile "$secrets/superlink.ext" -out "$secrets/superlink.pem" 2>/dev/null
    rm -f "$secrets/superlink.csr" "$secrets/superlink.ext"
fi
private="$private $secrets/superlink.key"
secret superexec-server

for silo in 1 2 3; do
    mkdir -p "$folder/data/silo-$silo"
    secret "superexec-$silo"
    # For the link between the silo's own two services. Signed by itself: nobody else has to trust it.
    if [ ! -e "$secrets/silo-$silo.key" ]; then
        key "$secrets/silo-$silo.key" "silo $silo" -x509 -days "$days" -out "$secrets/silo-$silo.pem" \
            -addext "subjectAltName=DNS:supernode,DNS:localhost,IP:127.0.0.1" \
            -addext "keyUsage=critical,digitalSignature,keyCertSign"
    fi
    # The key that the SuperLink knows this silo by.
    if [ ! -e "$secrets/supernode-$silo" ]; then
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "silo $silo" -f "$secrets/supernode-$silo"
    fi
    private="$private $secrets/silo-$silo.key $secrets/supernode-$silo"
done

chmod 644 "$secrets/ca.crt" "$secrets"/*.pem

# Containers run as the user 49999 and see these files with the owner that they have here. ca.key is not mounted.
if [ "$(id -u)" = 0 ]; then
    # shellcheck disable=SC2086  (a list of paths made above)
    chown 49999:49999 $private "$folder/state" "$folder/runs"
else
    echo "containers run as the user 49999, which must own the private files; type:"
    echo "sudo chown 49999:49999$private $folder/state $folder/runs"
fi
