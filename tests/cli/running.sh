# shellcheck shell=sh
# running PID: whether a process that this shell started is still at work. `kill -0` is content with one
# that has ended and was not waited for.
running()
{
    read -r _ _ state _ 2>/dev/null <"/proc/$1/stat" && [ "$state" != Z ]
}
