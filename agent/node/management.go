// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"
)

// resolveTimeout is how long the name of an API server may take: a configuration waits for it.
const resolveTimeout = time.Second

// APIServer gives a function that tells the addresses of the API server, by which the node is managed; none while its name can not be resolved for the first
// time. The function is for one goroutine at a time.
func APIServer(cfg *rest.Config) func() []netip.Addr {
	var last []netip.Addr
	return func() []netip.Addr {
		url, _, err := rest.DefaultServerUrlFor(cfg)
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
		defer cancel()
		if found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", url.Hostname()); err == nil {
			last = last[:0]
			for _, a := range found {
				last = append(last, a.Unmap().WithZone(""))
			}
		}
		return last
	}
}
