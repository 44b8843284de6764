// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"encoding/json"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// networkStatus is the annotation by which Multus and its kin tell the addresses of all networks of a pod.
const networkStatus = "k8s.v1.cni.cncf.io/network-status"

// maxPodAddresses bounds what one pod can add to the slices, whatever its annotation says.
const maxPodAddresses = 64

// podAddresses is all that is kept of a pod. It has the metadata that a store of client-go asks for and nothing else, as there may be a hundred
// thousand of them.
type podAddresses struct {
	namespace, name, version string
	addresses                []netip.Addr // sorted, each once
}

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (p *podAddresses) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, ResourceVersion: p.version}
}

// stripPod turns a pod into its addresses on the way into a store.
func stripPod(in any) (any, error) {
	pod, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	return &podAddresses{namespace: pod.Namespace, name: pod.Name, version: pod.ResourceVersion, addresses: addressesOf(pod)}, nil
}

// addressesOf gives the addresses by which a pod sends RDMA traffic: its own and those of its secondary networks. A pod on the network of its
// node has none of its own, and neither does one that has ended: its addresses may be another's by now.
func addressesOf(pod *corev1.Pod) []netip.Addr {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	var list, host []netip.Addr
	for _, ip := range pod.Status.HostIPs {
		host = appendAddress(host, ip.IP)
	}
	for _, ip := range pod.Status.PodIPs {
		if pod.Spec.HostNetwork {
			host = appendAddress(host, ip.IP)
		} else {
			list = appendAddress(list, ip.IP)
		}
	}
	for _, ip := range secondary(pod.Annotations[networkStatus]) {
		list = appendAddress(list, ip)
	}
	if pod.Spec.HostNetwork {
		list = slices.DeleteFunc(list, func(a netip.Addr) bool { return slices.Contains(host, a) })
	}
	slices.SortFunc(list, netip.Addr.Compare)
	list = slices.Compact(list)
	return slices.Clip(list[:min(len(list), maxPodAddresses)])
}

// secondary reads the annotation. What can not be read adds nothing: anyone who may change the pod may write it.
func secondary(text string) []string {
	if text == "" {
		return nil
	}
	var networks []struct {
		IPs []string `json:"ips"`
	}
	if json.Unmarshal([]byte(text), &networks) != nil {
		return nil
	}
	var list []string
	for _, n := range networks {
		list = append(list, n.IPs...)
	}
	return list
}

// appendAddress adds an address that a flow can have; an IPv4-mapped one is IPv4.
func appendAddress(list []netip.Addr, text string) []netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return list
	}
	if a = a.Unmap(); !a.IsGlobalUnicast() {
		return list
	}
	return append(list, a)
}
