# Programs that the command started end with it, also when it is killed.
. "$ROOT/tests/cli/running.sh"
mkdir bin
printf '#!/bin/sh\ntrap "" TERM INT HUP\necho $$ >pid.part\nmv pid.part "$PIDFILE"\nexec sleep 1000\n' >bin/stay
chmod +x bin/stay
cp bin/stay bin/gnuplot
PATH=$PWD/bin:$PATH
PIDFILE=$PWD/pid
export PATH PIDFILE
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o t.h5 >/dev/null
"$LACUNA" replay -q t.h5 --layers 0 --heads 0 -m dense -o r
# ends SIGNAL WORDS: what the command's exit is, and that its program ends, too.
ends()
{
    signal=$1
    shift
    rm -f pid
    "$LACUNA" "$@" 2>err &
    while [ ! -e pid ]; do sleep 0.02; done
    program=$(cat pid)
    kill "-$signal" $!
    wait $! 2>/dev/null
    echo "$signal $1: exit $?"
    while running "$program"; do sleep 0.02; done
}
for s in TERM INT HUP KILL; do
    ends $s replay -q t.h5 --layers 0 --heads 0 -m exec:cmd=stay -o r-$s
    ends $s plot bars r -o fig.png
done
"$LACUNA" replay -q t.h5 --layers 0 --heads 0 -m dense -o r
