// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"bytes"
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
	wordQueueBacklog    = 1 // of struct gnet_stats_queue, of four octets each
	wordQueueDropped    = 2
	octetsOfLinkStats   = 8 * (wordReceiveMissed + 1)
	octetsOfQueueStatus = 4 * (wordQueueDropped + 1)
)

// ReadCounters reads those of an interface.
func ReadCounters(index int) (Counters, error) {
	c, err := linkCounters(index)
	if err != nil {
		return Counters{}, fmt.Errorf("uplink: read the counters of interface %d: %w", index, err)
	}
	queue, err := rootQueue(index)
	if err != nil {
		return Counters{}, fmt.Errorf("uplink: read the queue of interface %d: %w", index, err)
	}
	if queue != nil {
		c.SendDropped += uint64(queue.word(wordQueueDropped))
	}
	return c, nil
}

// Queued returns the octets that wait in the root queueing discipline of an interface and in those below it. What the device itself has taken is
// not among them. An interface without a queue is an error, since nothing ever waits there.
func Queued(index int) (int64, error) {
	queue, err := rootQueue(index)
	switch {
	case err != nil:
		return 0, fmt.Errorf("uplink: read the queue of interface %d: %w", index, err)
	case queue == nil:
		return 0, fmt.Errorf("uplink: interface %d has no queue: give it one that shapes to the line's rate, for instance with tc qdisc add dev … root tbf", index)
	}
	return int64(queue.word(wordQueueBacklog)), nil
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

// queueStats is a struct gnet_stats_queue.
type queueStats []byte

func (q queueStats) word(i int) uint32 { return binary.NativeEndian.Uint32(q[4*i:]) }

// rootQueue is the statistics of the root queueing discipline, which counts those below it too; nil: the interface has none. The kernel tells of a
// single one only by a broadcast to all who listen to changes, so all are listed.
func rootQueue(index int) (queueStats, error) {
	queues, err := complete("queues", func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Ifindex: int32(index)})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	})
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		if len(q) < nl.SizeofTcMsg {
			return nil, errNoAnswer
		}
		if head := nl.DeserializeTcMsg(q); int(head.Ifindex) != index || head.Parent != netlink.HANDLE_ROOT {
			continue
		}
		if isNoQueue(q[nl.SizeofTcMsg:]) {
			return nil, nil
		}
		all, err := attribute(q[nl.SizeofTcMsg:], tcaStats2, 0)
		if err != nil {
			return nil, err
		}
		return attribute(all, tcaStatsQueue, octetsOfQueueStatus)
	}
	return nil, nil
}

// isNoQueue reports whether a queueing discipline is that of interfaces that have none.
func isNoQueue(attributes []byte) bool {
	kind, err := attribute(attributes, nl.TCA_KIND, 0)
	return err == nil && string(bytes.TrimRight(kind, "\x00")) == "noqueue"
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
