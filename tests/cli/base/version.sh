# "cuda yes" belongs to a program that has kernels, "cuda no" to one that has none.
cuda=no json=false
[ -n "$("$LACUNA" list kernels 2>/dev/null)" ] && cuda=yes json=true
"$LACUNA" version | sed "s/^cuda $cuda\$/cuda as the list of kernels says/"
"$LACUNA" --version | head -1
"$LACUNA" version --json | sed "s/^  \"cuda\": $json,/  \"cuda\": as the list of kernels says,/"
