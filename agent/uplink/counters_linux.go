// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Counters are totals of an interface, in packets. What it dropped is told apart by nobody: not by flow, nor by whose fault it was.
type Counters struct {
	Sent        uint64
	SendDropped uint64 // by its root queue, or by itself
	Received    uint64
	Missed      uint64 // arrived and dropped for want of room
}

const (
	statsLink64   = 1  // IFLA_STATS_LINK_64
	statsHead     = 12 // struct if_stats_msg
	tcaStats2     = 7
	tcaStatsQueue = 3
)

// Words of struct rtnl_link_stats64.
const (
	wordReceived        = 0
	wordSent            = 1
	wordReceiveDropped  = 6
	wordSendDropped     = 7
	wordReceiveMissed   = 15
	wordQueueDropped    = 2 // of struct gnet_stats_queue, of four octets each
	octetsOfLinkStats   = 8 * (wordReceiveMissed + 1)
	octetsOfQueueStatus = 4 * (wordQueueDropped + 1)
)

// ReadCounters reads those of an interface.
func ReadCounters(index int) (Counters, error) {
	c, err := linkCounters(index)
	if err != nil {
		return Counters{}, fmt.Errorf("uplink: read the counters of interface %d: %w", index, err)
	}
	queue, err := queueDrops(index)
	if err != nil {
		return Counters{}, fmt.Errorf("uplink: read the queue of interface %d: %w", index, err)
	}
	c.SendDropped += queue
	return c, nil
}

// linkCounters are those of the interface itself.
func linkCounters(index int) (Counters, error) {
	head := make([]byte, statsHead)
	binary.NativeEndian.PutUint32(head[4:], uint32(index))
	binary.NativeEndian.PutUint32(head[8:], 1<<(statsLink64-1))
	req := nl.NewNetlinkRequest(unix.RTM_GETSTATS, 0)
	req.AddRawData(head)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWSTATS)
	if err != nil {
		return Counters{}, err
	}
	if len(msgs) != 1 || len(msgs[0]) < statsHead {
		return Counters{}, errNoAnswer
	}
	stats, err := attribute(msgs[0][statsHead:], statsLink64, octetsOfLinkStats)
	if err != nil {
		return Counters{}, err
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(stats[8*i:]) }
	return Counters{
		Sent: word(wordSent), SendDropped: word(wordSendDropped), Received: word(wordReceived), Missed: word(wordReceiveDropped) + word(wordReceiveMissed),
	}, nil
}

// queueDrops are those of the root queueing discipline, which counts what those below it drop too. An interface may have none. The kernel tells
// of a single one only by a broadcast to all who listen to changes, so all are listed.
func queueDrops(index int) (uint64, error) {
	queues, err := complete("queues", func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Ifindex: int32(index)})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	})
	if err != nil {
		return 0, err
	}
	for _, q := range queues {
		if len(q) < nl.SizeofTcMsg {
			return 0, errNoAnswer
		}
		if head := nl.DeserializeTcMsg(q); int(head.Ifindex) != index || head.Parent != netlink.HANDLE_ROOT {
			continue
		}
		all, err := attribute(q[nl.SizeofTcMsg:], tcaStats2, 0)
		if err != nil {
			return 0, err
		}
		queue, err := attribute(all, tcaStatsQueue, octetsOfQueueStatus)
		if err != nil {
			return 0, err
		}
		return uint64(binary.NativeEndian.Uint32(queue[4*wordQueueDropped:])), nil
	}
	return 0, nil
}

// errNoAnswer is a kernel that does not tell what it was asked.
var errNoAnswer = errors.New("the kernel's answer has no counters")

// attribute finds one among attributes.
func attribute(b []byte, kind uint16, least int) ([]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Attr.Type&nl.NLA_TYPE_MASK == kind && len(list[i].Value) >= least {
			return list[i].Value, nil
		}
	}
	return nil, errNoAnswer
}
