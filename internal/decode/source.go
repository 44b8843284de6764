// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"fmt"
	"time"

	"crem.dev/crem/agent/roce"
)

// captured is one packet of a capture as an Ethernet frame.
type captured struct {
	time   time.Time
	frame  []byte // of the packet's original length: zeros in place of what the capture has not
	octets int    // of frame that were captured
	length int    // of frame
}

// cut says that the capture has only the beginning of the packet.
func (p *captured) cut() bool { return p.octets < p.length }

// maxFrame is more than any IP packet with its link header.
const maxFrame = 1<<16 + 64

// framed returns a record as an Ethernet frame.
func framed(r record) (captured, error) {
	frame, added, err := ethernet(r.link, r.data)
	if err != nil {
		return captured{}, err
	}
	p := captured{time: r.time, frame: frame, octets: len(frame), length: max(r.length+added, len(frame))}
	if p.cut() && p.length <= maxFrame {
		p.frame = append(p.frame, make([]byte, p.length-p.octets)...)
	}
	return p, nil
}

// Link types (www.tcpdump.org/linktypes.html).
const (
	linkEthernet = 1
	linkRaw      = 101
	linkSLL      = 113 // Linux cooked: -i any
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276 // Linux cooked, version 2
)

// ethernet returns a frame with an Ethernet header, and how many octets longer it is. A cooked or raw frame gets an empty
// header with its protocol.
func ethernet(link uint16, data []byte) (frame []byte, added int, err error) {
	const ipv4, ipv6 = 0x0800, 0x86dd
	switch link {
	case linkEthernet:
		return data, 0, nil
	case linkSLL:
		frame, added = cooked(data, 16, 14)
	case linkSLL2:
		frame, added = cooked(data, 20, 0)
	case linkRaw, linkIPv4, linkIPv6:
		protocol := uint16(ipv4)
		if len(data) > 0 && data[0]>>4 == 6 {
			protocol = ipv6
		}
		frame, added = withHeader(protocol, data), roce.EthernetLen
	default:
		err = fmt.Errorf("link type %d is not supported: capture on an Ethernet interface or with -i any", link)
	}
	return frame, added, err
}

// cooked replaces a Linux cooked header of some octets, which has the protocol at an offset.
func cooked(data []byte, header, at int) (frame []byte, added int) {
	if len(data) < header {
		return withHeader(0, nil), roce.EthernetLen - len(data)
	}
	return withHeader(binary.BigEndian.Uint16(data[at:]), data[header:]), roce.EthernetLen - header
}

func withHeader(protocol uint16, ip []byte) []byte {
	frame := make([]byte, roce.EthernetLen, roce.EthernetLen+len(ip))
	binary.BigEndian.PutUint16(frame[12:], protocol)
	return append(frame, ip...)
}
