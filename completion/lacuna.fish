# fish completion of lacuna. The program says what may stand at the end of the line.
complete -c lacuna -a '(lacuna help --complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
