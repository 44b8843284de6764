// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// agentClient has the token that the kubelet would mount into the pod, or one of the service account alone.
func agentClient(t *testing.T, cfg *rest.Config, pod string) client.Client {
	t.Helper()
	return clientOf(t, cfg, "crem-agent", pod)
}

func clientOf(t *testing.T, cfg *rest.Config, account, pod string) client.Client {
	t.Helper()
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	request := &authv1.TokenRequest{}
	if pod != "" {
		request.Spec.BoundObjectRef = &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod}
	}
	token, err := set.CoreV1().ServiceAccounts("crem-system").CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	as := rest.AnonymousClientConfig(cfg)
	as.BearerToken = token.Status.Token
	c, err := client.New(as, client.Options{Scheme: types(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refused(t *testing.T, what string, err error, sentence string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), sentence) {
		t.Errorf("%s: %v, not refused with %q", what, err, sentence)
	}
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// warnings keeps what the API server warns of.
type warnings struct {
	mu   sync.Mutex
	text string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += text
}

func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.text
	w.text = ""
	return text
}
