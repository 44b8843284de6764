// SPDX-License-Identifier: Apache-2.0

package bpf

//go:generate go tool bpf2go -go-package bpf -target bpfel -type reason -cc clang -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" crem c/crem.bpf.c
//go:generate go tool bpf2go -go-package bpf -target bpfel -type passage -cc clang -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" wan c/wan.bpf.c
