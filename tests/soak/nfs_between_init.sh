#!/bin/busybox sh
# The first process of one of three kernels: a server of NFSv4 on ext4, or a machine that mounts it.
# Its folder of the host is /host: there it finds what to do, and tells what came of it.
export PATH=/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/room/src:/room/tests
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /run
mkdir -p /dev/shm /host /m; mount -t tmpfs s /dev/shm; mount -t tmpfs t /tmp
for module in $(cat /modules/order); do insmod /modules/$module 2>&1 | grep -v exists; done
set -- $(sed -n 's/.*lifehold=\([^ ]*\).*/\1/p' /proc/cmdline | tr ',' ' ')
role=$1 number=$2 lease=$3; mount -t hostfs h /host -o $4
hostname $role
ip link set lo up; ip addr add 10.9.0.$number/24 dev eth0; ip link set eth0 up
if [ $role = server ]; then
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
    mount -t ext4 /dev/ubda /srv; chmod 1777 /srv
    mount -t nfsd n /proc/fs/nfsd; mount -t rpc_pipefs r /var/lib/nfs/rpc_pipefs
    echo $lease >/proc/fs/nfsd/nfsv4leasetime; echo $lease >/proc/fs/nfsd/nfsv4gracetime
    exportfs -ra; rpc.mountd -N 3 -u 2>/dev/null; timeout 20 rpc.nfsd -N 3 4
    echo Y >/proc/fs/nfsd/v4_end_grace
else
    until timeout 30 mount.nfs 10.9.0.1:/ /m -o vers=4.2; do sleep 0.3; done
fi
cd /host/$role; cat /proc/sys/fs/leases-enable >up.new; mv up.new up; n=1
while :; do
    if [ -e $n.go ]; then
        (sh $n.sh >$n.out 2>&1; echo $? >$n.rc; touch $n.done) &
        n=$((n + 1))
    else
        sleep 0.05
    fi
done
