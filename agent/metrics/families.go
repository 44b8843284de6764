// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Labels that metrics may have. Every one has few values, known from the code or the configuration: an address, a queue pair, a
// flow or the text of an error is never a label.
const (
	labelDomain    = "domain"
	labelInterface = "interface"
	labelDirection = "direction"
	labelReason    = "reason"
	labelSite      = "site"
	labelTransport = "transport"
	labelVersion   = "version"

	sent     = "sent"
	received = "received"
)

// Family is one metric with its labels.
type Family struct {
	Name   string
	Type   prometheus.ValueType
	Help   string
	Labels []string
}

// Families are all metrics of the agent, in the order of docs/metrics.md.
func Families() []Family {
	all := append([]Family(nil), gauges[:]...)
	seen := map[string]bool{}
	for i := range counters {
		if f := counters[i].family; !seen[f.Name] {
			seen[f.Name] = true
			all = append(all, f)
		}
	}
	return append(all, drops, events)
}

const prefix = "crem_agent_"

func gauge(name, help string, labels ...string) Family {
	return Family{Name: prefix + name, Type: prometheus.GaugeValue, Help: help, Labels: labels}
}

func total(name, help string, labels ...string) Family {
	return Family{Name: prefix + name + "_total", Type: prometheus.CounterValue, Help: help, Labels: labels}
}

// Gauges, by their place in the table.
const (
	buildInfo = iota
	configGeneration
	configAppliedGeneration
	configStale
	configProblems
	domainApplied
	uplinkAttached
	uplinkMTU
	flowsSeen
	flowsProtected
	workers
	workersRealtime
	heartbeatAge
	memoryInUse
	memoryLimit
	memoryHeld
	mtuTooSmall
	mtuNeeded
	mtuAvailable
	siteFlows
	siteRTT
	siteLoss
	tunnelsWanted
	tunnelsUp
	ready
	apiConnected
	numGauges
)

var gauges = [numGauges]Family{
	buildInfo:               gauge("build_info", "1, with the version of the agent.", labelVersion),
	configGeneration:        gauge("config_generation", "Generation of the newest good configuration."),
	configAppliedGeneration: gauge("config_applied_generation", "Generation that all packet workers obey; 0 while they differ."),
	configStale:             gauge("config_stale", "1 when the newest configuration was refused and an older one is in force."),
	configProblems:          gauge("config_problems", "Objects that are not, or not wholly, in force on this node."),
	domainApplied:           gauge("domain_applied", "1 when the domain is in force.", labelDomain),
	uplinkAttached:          gauge("uplink_attached", "1 when packets of the uplink are seen and restored.", labelInterface),
	uplinkMTU:               gauge("uplink_mtu_bytes", "Largest IP packet of the uplink.", labelInterface),
	flowsSeen:               gauge("flows", "Flows that leave (sent) and flows that are restored (received).", labelDirection),
	flowsProtected:          gauge("flows_protected", "Leaving flows whose peer has acknowledged a configuration, of each transport that CREM knows.", labelTransport),
	workers:                 gauge("workers", "Packet workers."),
	workersRealtime:         gauge("workers_realtime", "Packet workers that run before ordinary programs."),
	heartbeatAge:            gauge("worker_heartbeat_age_seconds", "Age of the oldest heartbeat of a packet worker. Over 0.01 the kernel passes its packets unprotected."),
	memoryInUse:             gauge("memory_in_use_bytes", "Memory that the packet path holds."),
	memoryLimit:             gauge("memory_limit_bytes", "The most that the packet path may hold."),
	memoryHeld:              gauge("memory_held_bytes", "Memory of packets that wait for a gap before them."),
	mtuTooSmall:             gauge("mtu_too_small_flows", "Flows that are not protected because a repair of their packets does not fit the uplink."),
	mtuNeeded:               gauge("mtu_too_small_needed_bytes", "MTU that the largest of these flows needs; 0 without any."),
	mtuAvailable:            gauge("mtu_too_small_available_bytes", "MTU that this flow has; 0 without any."),
	siteFlows:               gauge("site_flows_protected", "Leaving flows to the site whose peer has acknowledged a configuration.", labelDomain, labelSite),
	siteRTT:                 gauge("site_rtt_seconds", "Mean of these flows' smoothed round-trip times; not there until one is measured.", labelDomain, labelSite),
	siteLoss:                gauge("site_loss_ratio", "Mean of these flows' estimates of packet loss, before restoration; not there without flows.", labelDomain, labelSite),
	tunnelsWanted:           gauge("tunnels_wanted", "Other sites towards which flows should travel in a tunnel; 0 on a node that is no gateway."),
	tunnelsUp:               gauge("tunnels_up", "Of these, those whose tunnel flows go into. To the others they leave outside of it."),
	ready:                   gauge("ready", "1 when /readyz says so."),
	apiConnected:            gauge("api_connected", "1 when the API server answered last time; absent without Kubernetes. Traffic does not depend on it."),
}

// counter takes one counter of the status to a metric. A name that ends in * stands for all names that begin so; the rest of the
// name is then the value of the last label.
type counter struct {
	name   string
	family Family
	labels []string
}

var (
	sourcePackets = total("source_packets", "Source packets: leaving ones with a new PSN (sent), arriving ones of every kind (received).", labelDirection)
	sourceBytes   = total("source_bytes", "Octets of the UDP payload of source packets.", labelDirection)
	repairsSent   = total("repairs_sent", "REPAIR messages sent: with a block (ordinary), for packets that a node of the path reported dropped (early), on request (coded), as copies of single packets (copy), without symbol (info).", labelReason)
	requestsSent  = total("requests_sent", "REPAIR_REQUEST messages sent: for a block, for ranges of PSNs, and of both forms for copies (fallback).", labelReason)
	lossReports   = total("loss_reports", "LOSS_REPORT messages.", labelDirection)
	pathReports   = total("path_reports", "PATH_REPORT messages: made by this node's Path Reporter (sent), believed by its senders (received).", labelDirection)
	notified      = total("cnp", "Notifications of congestion in tunnels: sent to where packets with marks entered them, received and acted upon, and acted upon because the own queue was long (own).", labelDirection, labelReason)
	identified    = total("identifications", "IPv4 Identifications found for restored packets: as predicted (constant, window), solved from the invariant CRC (solved), refused.", labelReason)
)

// counters are the counters that have a metric of their own. What is not in the table is in events.
var counters = []counter{
	{"csf_source_packets", sourcePackets, []string{sent}},
	{"crf_sources", sourcePackets, []string{received}},
	{"csf_source_octets", sourceBytes, []string{sent}},
	{"crf_source_octets", sourceBytes, []string{received}},
	{"unprotected_source_packets", total("unprotected_packets", "Source packets of flows that no profile takes."), nil},

	{"csf_repairs_ordinary", repairsSent, []string{"ordinary"}},
	{"csf_repairs_early", repairsSent, []string{"early"}},
	{"csf_repairs_coded", repairsSent, []string{"coded"}},
	{"csf_repairs_copies", repairsSent, []string{"copy"}},
	{"csf_repairs_info", repairsSent, []string{"info"}},
	{"csf_repair_octets", total("repair_sent_bytes", "Octets of REPAIR messages sent with a symbol."), nil},
	{"csf_withheld", total("repairs_withheld", "Repair symbols that were wanted and not sent; crem_agent_drops_total says why."), nil},
	{"csf_blocks_closed_by_*", total("blocks_sent", "Blocks by what closed them: all positions covered (count), a pause (gap), their age, a jump of the PSN, a request, a report of a drop.", labelReason), nil},
	{"csf_requests", total("requests_received", "REPAIR_REQUEST messages received."), nil},
	{"csf_requests_answered", total("requests_answered", "Blocks for which a request was answered."), nil},
	{"csf_path_reports", pathReports, []string{received}},
	{"reporter_reports", pathReports, []string{sent}},
	{"reporter_attributed", total("path_drops_reported", "Packets of protected flows that this node's Path Reporter says its uplinks dropped: each flow's part of what their counters say."), nil},
	{"csf_breaker_opened", total("breaker_opened", "Times that the circuit breaker stopped repair for a flow (loss over 10 % or congestion marks over 50 % for a second)."), nil},
	{"csf_restarts", total("restarts", "Flows that started again because their PSNs did.", labelDirection), []string{sent}},
	{"crf_restarts", total("restarts", "Flows that started again because their PSNs did.", labelDirection), []string{received}},

	{"crf_lost", total("lost_packets", "Source packets that did not arrive, before restoration."), nil},
	{"crf_ce_marked", total("ce_marked_packets", "Source packets that arrived with a congestion mark."), nil},
	{"crf_late_*", total("late_packets", "Source packets that came too late to be used in decoding, by the rule that says so. They were delivered.", labelReason), nil},
	{"crf_repairs", total("repairs_received", "REPAIR messages received."), nil},
	{"crf_repairs_unneeded", total("repairs_unneeded", "REPAIR messages for blocks that were complete."), nil},
	{"crf_blocks", total("blocks_incomplete", "Blocks that were incomplete when their first REPAIR came."), nil},
	{"crf_incomplete", total("blocks_incomplete_at_decode", "Blocks that could not be completed at the first attempt to decode."), nil},
	{"crf_completed", total("blocks_completed", "Incomplete blocks that became complete."), nil},
	{"crf_restored", total("restored_packets", "Packets restored, verified and delivered."), nil},
	{"crf_restore_verify_failures", total("restore_verify_failures", "Decodes refused as a whole because a restored packet was not plausible, its invariant CRC was wrong, or the block digest differed. Nothing of them was delivered."), nil},
	{"crf_digest_failures", total("digest_failures", "Of these, because of the block digest."), nil},
	{"crf_id_constant", identified, []string{"constant"}},
	{"crf_id_window", identified, []string{"window"}},
	{"crf_id_solved", identified, []string{"solved"}},
	{"crf_id_refused", identified, []string{"refused"}},
	{"crf_block_requests", requestsSent, []string{"block"}},
	{"crf_range_requests", requestsSent, []string{"range"}},
	{"crf_fallback_requests", requestsSent, []string{"fallback"}},
	{"crf_given_up", total("given_up_packets", "Packets given up after all rounds of repair; the RDMA transport recovers them."), nil},
	{"crf_held", total("held_packets", "Packets that had to wait for a gap before them."), nil},
	{"crf_released_*", total("released_packets", "Held packets by why they went on.", labelReason), nil},
	{"csf_loss_reports", lossReports, []string{received}},
	{"crf_loss_reports", lossReports, []string{sent}},
	{"cnp_sent_*", notified, []string{sent}},
	{"cnp_received_*", notified, []string{received}},
	{"cnp_own_*", notified, []string{"own"}},
	{"tunnel_*", total("tunnel_packets", "Packets at tunnels between sites by what became of them (docs/metrics.md lists it). Those that begin with in_ were dropped on arrival.", labelReason), nil},
	{"measured_packets", total("tunnel_measured_packets", "Packets that went into tunnels, of the flows and marking periods of which the loss was measured."), nil},
	{"measured_lost", total("tunnel_lost_packets", "Of these, packets that did not come out."), nil},
	{"kernel_*", total("kernel_packets", "Packets on the uplinks by what the kernel program did with them (docs/metrics.md lists the reasons).", labelReason), nil},
}

var (
	drops = total("drops", "What was not used, by why: packets not coded or messages refused on the sending side (sent), the receiving side (received), or before a flow was found (direction none). No reason here loses a packet of RDMA.", labelDirection, labelReason)
	// events holds the counters without a metric of their own. Their names are of the code, so their number is bounded.
	events = total("events", "Everything else that is counted, by what it is: of the sending side (sent), the receiving side (received), or of both (direction none).", labelDirection, labelReason)
)
