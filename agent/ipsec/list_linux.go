// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrUnsupported says that this kernel has no XFRM.
var ErrUnsupported = errors.New("this kernel has no XFRM")

// Dumps that are interrupted by changes are asked for again, a little later each time.
const (
	listTries = 8
	listPause = 5 * time.Millisecond
)

// List reads all policies of the calling thread's network namespace. An interrupted dump is asked for again; after several of them it is an error, never
// a list that lacks something.
func List() ([]Policy, error) {
	var err error
	for try := range listTries {
		var list []Policy
		if list, err = listOnce(); err == nil {
			return list, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		time.Sleep(time.Duration(try+1) * listPause) // whoever changes policies needs a moment; no packet worker waits for this
	}
	if unsupported(err) {
		return nil, ErrUnsupported
	}
	return nil, fmt.Errorf("read the XFRM policies: %w", err)
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT)
}

func listOnce() ([]Policy, error) {
	req := nl.NewNetlinkRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := req.Execute(unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
	if err != nil {
		return nil, err
	}
	var list []Policy
	for _, m := range messages {
		p, ok, err := parse(m)
		if err != nil {
			return nil, err
		}
		if ok {
			list = append(list, p)
		}
	}
	return list, nil
}

// parse reads one policy of a dump; ok is false for those of sockets, which are asked for no other traffic.
func parse(m []byte) (p Policy, ok bool, err error) {
	if len(m) < nl.SizeofXfrmUserpolicyInfo {
		return p, false, errors.New("a policy is cut short")
	}
	msg := nl.DeserializeXfrmUserpolicyInfo(m)
	if msg.Dir > uint8(Forward) {
		return p, false, nil
	}
	sel := &msg.Sel
	p = Policy{
		Dir: Direction(msg.Dir), Protocol: sel.Proto, Priority: msg.Priority, Blocks: msg.Action != uint8(netlink.XFRM_POLICY_ALLOW),
		SrcPorts: ports(sel.Sport, sel.SportMask), DstPorts: ports(sel.Dport, sel.DportMask), OneIface: sel.Ifindex != 0,
	}
	if p.Src, err = prefix(&sel.Saddr, sel.PrefixlenS, sel.Family); err != nil {
		return p, false, err
	}
	if p.Dst, err = prefix(&sel.Daddr, sel.PrefixlenD, sel.Family); err != nil {
		return p, false, err
	}
	attrs, err := nl.ParseRouteAttr(m[nl.SizeofXfrmUserpolicyInfo:])
	if err != nil {
		return p, false, err
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.XFRMA_TMPL:
			p.ESP = esp(a.Value)
		case nl.XFRMA_MARK:
			p.Marked = len(a.Value) >= nl.SizeofXfrmMark && nl.DeserializeXfrmMark(a.Value).Mask != 0
		case nl.XFRMA_IF_ID:
			if len(a.Value) >= 4 {
				p.IfID = nl.NativeEndian().Uint32(a.Value)
			}
		}
	}
	p.ESP = p.ESP && !p.Blocks
	return p, true, nil
}

// esp looks for a template of ESP that is not optional.
func esp(templates []byte) bool {
	for ; len(templates) >= nl.SizeofXfrmUserTmpl; templates = templates[nl.SizeofXfrmUserTmpl:] {
		t := nl.DeserializeXfrmUserTmpl(templates[:nl.SizeofXfrmUserTmpl])
		if t.XfrmId.Proto == unix.IPPROTO_ESP && t.Optional == 0 {
			return true
		}
	}
	return false
}

// ports turns the network's octets, which netlink keeps, into numbers.
func ports(port, mask uint16) Ports {
	if nl.NativeEndian().Uint16([]byte{1, 0}) == 1 {
		port, mask = bits.ReverseBytes16(port), bits.ReverseBytes16(mask)
	}
	return Ports{Port: port & mask, Mask: mask}
}

func prefix(a *nl.XfrmAddress, length uint8, family uint16) (netip.Prefix, error) {
	var addr netip.Addr
	switch family {
	case unix.AF_INET:
		addr = netip.AddrFrom4([4]byte(a[:4]))
	case unix.AF_INET6:
		addr = netip.AddrFrom16(*a)
	}
	p, err := addr.Prefix(int(length))
	if err != nil || !p.IsValid() {
		return p, fmt.Errorf("a policy has a selector of family %d with a prefix of %d bits", family, length)
	}
	return p, nil
}
