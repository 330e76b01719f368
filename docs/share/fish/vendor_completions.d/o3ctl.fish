# fish completion for o3ctl; made by: cockpit completion fish
function __o3ctl_at --description 'The command that is being completed'
    set -l at o3ctl
    for word in (commandline -opc)[2..-1]
        contains -- "$at $word" 'o3ctl status' 'o3ctl pause' 'o3ctl resume' 'o3ctl evict' 'o3ctl top' 'o3ctl policy' 'o3ctl policy show' 'o3ctl policy reset' 'o3ctl policy freeze'; and set at "$at $word"
    end
    test "$at" = "$argv[1]"
end
complete -c o3ctl -f
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -a 'status' -d 'Lanes, queues, budgets, memory, degraded mode and policy.'
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -a 'pause' -d 'Start nothing more of TASK until it is resumed.'
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -a 'resume' -d 'Let TASK start again.'
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -a 'evict' -d 'Take the KV memory of SESSION; at its next boundary while a request runs on it.'
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -a 'top' -d 'The status, live, until Ctrl-C.'
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -a 'policy' -d 'The online policy: what it learnt, forget it, pin it.'
complete -c o3ctl -n '__o3ctl_at "o3ctl"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl status"' -l verbose -s v -d 'Also lanes, eviction candidates, last decisions.'
complete -c o3ctl -n '__o3ctl_at "o3ctl status"' -l json -d 'Print one JSON object instead of tables.'
complete -c o3ctl -n '__o3ctl_at "o3ctl status"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl status"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl pause"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl pause"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl resume"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl resume"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl evict"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl evict"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl top"' -l every -r -d 'Seconds between two looks.'
complete -c o3ctl -n '__o3ctl_at "o3ctl top"' -l looks -r -d 'Stop after so many looks; 0: until Ctrl-C.'
complete -c o3ctl -n '__o3ctl_at "o3ctl top"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl top"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy"' -a 'show' -d 'Which arm runs and what was learnt (--json: all of it).'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy"' -a 'reset' -d 'Forget what was learnt, on disk too, and go back to the safe arm.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy"' -a 'freeze' -d 'Stay with the arm that runs now.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy show"' -l json -d 'Print one JSON object instead of tables.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy show"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy show"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy reset"' -l json -d 'Print one JSON object instead of tables.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy reset"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy reset"' -s h -l help -d 'Show the help and exit.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy freeze"' -l off -d 'Let it learn again.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy freeze"' -l json -d 'Print one JSON object instead of tables.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy freeze"' -l socket -r -F -d 'Control socket of the service.'
complete -c o3ctl -n '__o3ctl_at "o3ctl policy freeze"' -s h -l help -d 'Show the help and exit.'
