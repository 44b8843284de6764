// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
)

// G13: the API server's addresses are known however the configuration writes it, without asking anybody where it is an address.
func TestG13_AddressesOfTheAPIServer(t *testing.T) {
	for host, want := range map[string]string{
		"https://10.96.0.1:443": "[10.96.0.1]", "10.96.0.1:443": "[10.96.0.1]", "https://[fd00:96::1]": "[fd00:96::1]", "https://%": "[]",
	} {
		ask := APIServer(&rest.Config{Host: host})
		for range 2 {
			if got := fmt.Sprint(ask()); got != want {
				t.Errorf("%q: %s, want %s", host, got, want)
			}
		}
	}
}
