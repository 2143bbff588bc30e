#!/bin/sh
# A rank: rank.sh WORK COMMAND... runs the command as node n<rank> with the mount point WORK/m<rank>,
# says so in WORK/ended<rank>, and stays until there is a file WORK/end, for a minute at most.
work=$1
shift
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-$SLURM_PROCID}}}
mkdir -p "$work/m$rank"
"$@" "$work/m$rank" --node-name "n$rank" --log-file "$work/log$rank"
status=$?
echo $status >"$work/ended$rank.new"
mv "$work/ended$rank.new" "$work/ended$rank"
echo $$ >"$work/pid$rank"
tries=1200
while [ $tries -gt 0 ] && [ ! -e "$work/end" ]; do
    sleep 0.05
    tries=$((tries - 1))
done
exit $status
