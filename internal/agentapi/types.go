// SPDX-License-Identifier: Apache-2.0

// Package agentapi holds what a node's agent says about itself on its local socket: plain values with JSON names, made by the
// engine, read by metrics and by kubectl-crem. It has no behaviour and no dependency on the data path.
//
// All counters are totals since the agent started; durations are seconds as float64; sizes are octets.
package agentapi

// Status is the answer to GET /v1/status.
type Status struct {
	Version           string            `json:"version"`
	Node              string            `json:"node"`
	Generation        int64             `json:"generation"`        // of the configuration that the agent was told
	AppliedGeneration int64             `json:"appliedGeneration"` // of the configuration that the data path obeys
	Uplinks           []Uplink          `json:"uplinks"`
	Excluded          []Exclusion       `json:"excluded,omitempty"` // interfaces that lead to another site, are not named and were not taken
	Domains           []Domain          `json:"domains"`
	Workers           []Worker          `json:"workers"`
	Counters          map[string]uint64 `json:"counters"` // every counter of the data path that is not a drop, by name
	Drops             map[string]uint64 `json:"drops"`    // every drop or refusal, by reason
	Memory            Memory            `json:"memory"`
	Flows             FlowCount         `json:"flows"`
	Sites             []Site            `json:"sites,omitempty"`   // the other sites of every domain, as leaving flows see them
	Tunnels           []Tunnel          `json:"tunnels,omitempty"` // to the other sites of every domain with tunnels
	// Unmeasured is why messages of readings, or periods of a flow, said nothing of the loss in tunnels that are measured.
	Unmeasured map[string]uint64 `json:"unmeasured,omitempty"`
	// MTUTooSmall is about flows that are not protected because a REPAIR of their packets does not fit the uplink.
	MTUTooSmall MTUTooSmall `json:"mtuTooSmall"`
	// ConfigStale says in sentences why the newest configuration was refused; the last good one is in force. Empty: the newest one is.
	ConfigStale string `json:"configStale,omitempty"`
	// APIConnected says whether the API server answered last time; absent where there is none to ask.
	APIConnected *bool     `json:"apiConnected,omitempty"`
	Problems     []Problem `json:"problems,omitempty"` // objects that are not, or not wholly, in force here
}

// MTUTooSmall counts flows whose repairs do not fit, with the numbers of the one that needs most; octets of IP packet.
type MTUTooSmall struct {
	Flows int `json:"flows"`
	Need  int `json:"need"`
	Have  int `json:"have"`
}

// Problem is what keeps one object from doing all that it says on this node.
type Problem struct {
	Object  string `json:"object"`  // kind and name
	Reason  string `json:"reason"`  // one of the documented reasons
	Message string `json:"message"` // what is wrong and what to do
}

// Uplink is one interface that leads to other sites.
type Uplink struct {
	Name     string `json:"name"`
	Index    int    `json:"index"`
	MTU      int    `json:"mtu"`      // IP MTU
	Why      string `json:"why"`      // why this interface is an uplink, one sentence
	Attached bool   `json:"attached"` // programs attached and tap open
	Reason   string `json:"reason"`
	Problem  string `json:"problem,omitempty"`
}

// Exclusion is one interface that was not taken.
type Exclusion struct {
	Name string `json:"name"`
	Why  string `json:"why"` // one sentence, or two
}

// Domain is the state of one CREMDomain on this node.
type Domain struct {
	Name    string `json:"name"`
	Port    uint16 `json:"port"`
	Site    string `json:"site"`
	Applied bool   `json:"applied"`
	Reason  string `json:"reason"`
	Problem string `json:"problem,omitempty"`
	// Security is NotRequired, Secured or PolicyMissing; SecurityProblem says what is missing.
	Security        string `json:"security"`
	SecurityProblem string `json:"securityProblem,omitempty"`
	// Reporter is what the node reports to the CSFs of the flows on its uplinks: ReporterOff or ReporterOwnDrops. ReporterProblem says what it
	// does not report, and why.
	Reporter        string `json:"reporter"`
	ReporterProblem string `json:"reporterProblem,omitempty"`
}

// Reasons of uplinks and domains. They are the API's, which this package does not import.
const (
	ReasonApplied           = "Applied"
	ReasonInterfaceNotFound = "InterfaceNotFound"
	ReasonNoRoute           = "NoRoute"
	ReasonKernelUnsupported = "KernelUnsupported"
	ReasonMissingCapability = "MissingCapability"
	ReasonAttachFailed      = "AttachFailed"
	ReasonNotRequired       = "NotRequired"
	ReasonSecured           = "Secured"
	ReasonPolicyMissing     = "PolicyMissing"
)

// Modes of the Path Reporter, as the API names them.
const (
	ReporterOff      = "Off"
	ReporterOwnDrops = "OwnDrops"
)

// Site is another site of a domain, over all leaving flows that are protected towards it.
type Site struct {
	Domain    string  `json:"domain"`
	Name      string  `json:"name"`
	Protected int     `json:"protected"`   // flows
	Suspended int     `json:"suspended"`   // flows that are left to RDMA: their circuit breaker is open, or has closed them
	SRTT      float64 `json:"srttSeconds"` // mean of the flows that have measured it; 0: none has
	Loss      float64 `json:"loss"`        // mean of the flows' estimates, before restoration
	// Packets that receivers reported on, and those of them that were lost before restoration: totals since the agent started.
	Expected uint64 `json:"expected"`
	Lost     uint64 `json:"lost"`
}

// Tunnel is the tunnel that flows to another site take.
type Tunnel struct {
	Domain  string `json:"domain"`
	Site    string `json:"site"`
	Gateway bool   `json:"gateway"`         // this node is a gateway of the own site; no other one has tunnels
	Up      bool   `json:"up"`              // flows go into it, if they fit; else they leave as they are
	Local   string `json:"local,omitempty"` // outer addresses; empty: none is chosen
	Remote  string `json:"remote,omitempty"`
	Uplink  string `json:"uplink,omitempty"`
	MTU     int    `json:"mtu,omitempty"`     // octets of the largest outer packet
	Problem string `json:"problem,omitempty"` // why it is not up, and what to do
	Queue   *Queue `json:"queue,omitempty"`   // before it, if packets are marked by that

	Measured *Measured `json:"measured,omitempty"` // nil: it is not measured
}

// Queue is the queue of an uplink, in octets.
type Queue struct {
	Average int64  `json:"average"`
	Early   int64  `json:"early"`  // over this outer headers carry the early warning, the more often the longer it is,
	Severe  int64  `json:"severe"` // over this CE
	Problem string `json:"problem,omitempty"`
}

// Measured is what Alternate Marking found of the packets that go to a site in tunnels.
type Measured struct {
	Packets uint64 `json:"packets"` // that went in, of the flows and periods that were compared
	Lost    uint64 `json:"lost"`    // of these
	// DelayChange is by how much the mean delay of the tunnel that flows take has changed since it is measured, microseconds. The clocks of both ends drift in it.
	DelayChange int64  `json:"delayChangeMicroseconds"`
	Problem     string `json:"problem,omitempty"` // why it is not measured, and what to do
}

// Worker is one packet worker.
type Worker struct {
	ID          int     `json:"id"`
	Batches     uint64  `json:"batches"`
	Flows       int     `json:"flows"`
	PoolInUse   int64   `json:"poolInUse"`
	PoolLimit   int64   `json:"poolLimit"`
	LastBeatAge float64 `json:"lastBeatAgeSeconds"`
	Realtime    bool    `json:"realtime"` // runs before ordinary programs
}

// Memory is what the packet path holds.
type Memory struct {
	InUse int64 `json:"inUse"` // octets
	Limit int64 `json:"limit"` // octets
	Held  int64 `json:"held"`  // packets that wait for order
}

// FlowCount counts flows by role and state.
type FlowCount struct {
	Sending   int `json:"sending"`   // seen leaving
	Protected int `json:"protected"` // leaving, with an acknowledged configuration
	Receiving int `json:"receiving"` // a CRF machine is at work
	// ProtectedBy has the protected ones of every transport, by its name.
	ProtectedBy map[string]int `json:"protectedBy"`
}

// Flow is one flow on this node, in one role. The element of GET /v1/flows.
type Flow struct {
	ID          string `json:"id"`   // stable while the flow lives: role/source/destination/QPN/space
	Role        string `json:"role"` // "csf" or "crf"
	Domain      string `json:"domain"`
	Profile     string `json:"profile"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	QPN         uint32 `json:"qpn"`
	Transport   string `json:"transport"` // "RoCEv2", "veRoCE" or "MRC"
	Space       string `json:"space"`     // "request" or "response"
	FlowID      uint32 `json:"flowID"`
	Peer        string `json:"peer"`
	State       string `json:"state"`
	Why         string `json:"why"` // one sentence: why this m, or why not protected, and what to do
	Worker      int    `json:"worker"`

	K       int     `json:"k"`
	M       int     `json:"m"`
	T       int     `json:"t"`
	Scheme  string  `json:"scheme"`
	Loss    float64 `json:"loss"` // estimate p, before restoration
	SRTT    float64 `json:"srttSeconds"`
	Digest  bool    `json:"digest"`
	Breaker string  `json:"breaker,omitempty"` // "closed", "open"

	SourcePackets uint64            `json:"sourcePackets"`
	SourceOctets  uint64            `json:"sourceOctets"`
	RepairPackets uint64            `json:"repairPackets"`
	RepairOctets  uint64            `json:"repairOctets"`
	Restored      uint64            `json:"restored"`
	Held          uint64            `json:"held"`
	Counters      map[string]uint64 `json:"counters"` // all counters of the machine, by name
	Drops         map[string]uint64 `json:"drops"`
}

// Paths of the local socket. A flow's path is PathFlows, a slash and its ID.
const (
	PathStatus = "/v1/status"
	PathFlows  = "/v1/flows"
)

// DefaultSocket is where an agent listens unless it is told otherwise.
const DefaultSocket = "/run/crem/agent.sock"

// Error is the answer to a request that failed.
type Error struct {
	Message string `json:"message"` // what is wrong and what to do
}
