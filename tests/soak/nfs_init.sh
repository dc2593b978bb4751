#!/bin/busybox sh
# The first process of the guest: NFSv4 is served from memory, and mounted twice, as two hosts do.
export PATH=/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /run
mkdir -p /dev/shm; mount -t tmpfs s /dev/shm; mount -t tmpfs t /tmp
for module in $(cat /modules/order); do insmod /modules/$module 2>&1 | grep -v exists; done
ip link set lo up; touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
mount -t tmpfs x /srv; chmod 1777 /srv
mount -t nfsd n /proc/fs/nfsd; mount -t rpc_pipefs r /var/lib/nfs/rpc_pipefs
echo 10 >/proc/fs/nfsd/nfsv4leasetime; echo 10 >/proc/fs/nfsd/nfsv4gracetime
echo 0 >/proc/sys/fs/leases-enable  # both mounts are one client to the server's delegations
exportfs -ra; rpc.mountd -N 3 -u 2>/dev/null; timeout 20 rpc.nfsd -N 3 4
echo Y >/proc/fs/nfsd/v4_end_grace
for folder in /a /b; do
    timeout 30 mount.nfs 127.0.0.1:/ $folder -o vers=4.2,nosharecache,actimeo=30 || echo "NOT MOUNTED $folder"
done
cut -d' ' -f1 /proc/uptime | sed 's/^/MOUNTED after /'
words=$(sed -n 's/.*lifehold=\([^ ]*\).*/\1/p' /proc/cmdline | tr ',' ' ')
set -- $words; export LIFEHOLD_FAULTS_SLOW=$1; shift
cd /room && PYTHONPATH=/room/src:/room/tests python3 -m soak.nfs_guest /a /b $* 2>&1
cut -d' ' -f1 /proc/uptime | sed 's/^/END after /'
poweroff -f
