package interop

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// needsAccessControl skips a test unless the server trusts nobody; SERVICE_URL_TLS is needed beside AUTH_FOLDER.
func needsAccessControl(t *testing.T) {
	t.Helper()
	if authFolder() == "" {
		t.Skip("AUTH_FOLDER is not set")
	}
}

// token proves a role; lifetime 0 has no end.
func token(t *testing.T, role string, lifetime time.Duration) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(authFolder(), "secret.key"))
	must(t, err)
	claims := map[string]any{"sub": role}
	if lifetime != 0 {
		claims["exp"] = time.Now().Add(lifetime + time.Second).Unix()
	}
	body, err := json.Marshal(claims)
	must(t, err)
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(body)
	signer := hmac.New(sha256.New, key)
	signer.Write([]byte(text))
	return text + "." + encode(signer.Sum(nil))
}

// newGuardedNamespace makes one in which nobody but superusers has rights.
func newGuardedNamespace(t *testing.T) string {
	t.Helper()
	tenant := fmt.Sprintf("go-%d-%d", time.Now().UnixNano(), topicCount.Add(1))
	adminPath(t, http.MethodPut, "/admin/v2/tenants/"+tenant, `{"adminRoles":["ten"],"allowedClusters":["standalone"]}`)
	adminPath(t, http.MethodPut, "/admin/v2/namespaces/"+tenant+"/ns", "")
	return tenant + "/ns"
}

func grant(t *testing.T, namespace, role, actions string) {
	t.Helper()
	adminPath(t, http.MethodPost, "/admin/v2/namespaces/"+namespace+"/permissions/"+role, actions)
}

func revoke(t *testing.T, namespace, role string) {
	t.Helper()
	adminPath(t, http.MethodDelete, "/admin/v2/namespaces/"+namespace+"/permissions/"+role, "")
}

func newGuardedClient(t *testing.T, login pulsar.Authentication, overTLS bool) pulsar.Client {
	t.Helper()
	options := pulsar.ClientOptions{URL: os.Getenv("SERVICE_URL"), Authentication: login, OperationTimeout: patience}
	if overTLS {
		options.URL = os.Getenv("SERVICE_URL_TLS")
		options.TLSTrustCertsFilePath = filepath.Join(authFolder(), "authority.pem")
		options.TLSValidateHostname = true
	}
	return newClientWith(t, options)
}

func TestLogins(t *testing.T) {
	needsAccessControl(t)
	folder := authFolder()
	alice := token(t, "alice", 0)
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(alice), 0o600))
	password, err := pulsar.NewAuthenticationBasic("alice", "alice-password")
	must(t, err)
	port, err := os.ReadFile(filepath.Join(folder, "issuer.port"))
	must(t, err)
	issuer := "http://127.0.0.1:" + strings.TrimSpace(string(port))
	logins := map[string]pulsar.Authentication{
		"token":    pulsar.NewAuthenticationToken(alice),
		"supplier": pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) { return alice, nil }),
		"file":     pulsar.NewAuthenticationTokenFromFile(file),
		"password": password,
		"oauth2": pulsar.NewAuthenticationOAuth2(map[string]string{
			"type": "client_credentials", "issuerUrl": issuer, "audience": "us",
			"privateKey": "file://" + filepath.Join(folder, "alice.json"),
		}),
		"certificate": pulsar.NewAuthenticationTLS(filepath.Join(folder, "alice.pem"), filepath.Join(folder, "alice.key")),
	}
	if _, err := os.Stat(filepath.Join(folder, "without-openid")); err == nil {
		delete(logins, "oauth2")
	}
	for name, login := range logins {
		for _, overTLS := range []bool{false, true} {
			if name == "certificate" && !overTLS {
				continue
			}
			t.Run(fmt.Sprintf("%s tls=%v", name, overTLS), func(t *testing.T) {
				namespace := newGuardedNamespace(t)
				topic := "persistent://" + namespace + "/t"
				client := newGuardedClient(t, login, overTLS)
				if _, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic}); err == nil {
					t.Fatal("may produce without a grant")
				}
				grant(t, namespace, "alice", `["produce","consume"]`)
				consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
				send(t, newProducer(t, client, pulsar.ProducerOptions{Topic: topic}), 0, 10)
				equal(t, numbers(0, 10), texts(take(t, consumer, 10)), "messages")
			})
		}
	}
}

func TestStrangersAreKeptOut(t *testing.T) {
	needsAccessControl(t)
	wrong, err := pulsar.NewAuthenticationBasic("alice", "wrong")
	must(t, err)
	for name, login := range map[string]pulsar.Authentication{
		"nobody":         nil,
		"nonsense":       pulsar.NewAuthenticationToken("nonsense"),
		"expired":        pulsar.NewAuthenticationToken(token(t, "admin", -time.Minute)),
		"wrong password": wrong,
	} {
		t.Run(name, func(t *testing.T) {
			options := pulsar.ClientOptions{URL: os.Getenv("SERVICE_URL"), Authentication: login, OperationTimeout: 3 * time.Second}
			client := newClientWith(t, options)
			if _, err := client.CreateProducer(pulsar.ProducerOptions{Topic: newTopic()}); err == nil {
				t.Fatal("may produce")
			}
		})
	}
}

func TestSuppliersRenewTokens(t *testing.T) {
	needsAccessControl(t)
	var supplied atomic.Int64
	login := pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
		supplied.Add(1)
		return token(t, "admin", 2*time.Second), nil
	})
	client := newGuardedClient(t, login, false)
	topic := newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic})
	since := func() string {
		var stats struct {
			Publishers []struct{ Address, ConnectedSince string }
		}
		must(t, json.Unmarshal([]byte(admin(t, http.MethodGet, topic, "/stats", "")), &stats))
		return fmt.Sprint(stats.Publishers)
	}
	before, first, sent := since(), supplied.Load(), 0
	eventually(t, "three renewals", func() bool {
		send(t, producer, sent, sent+1)
		equal(t, numbers(sent, sent+1), texts(take(t, consumer, 1)), "message")
		sent++
		return supplied.Load() >= first+3
	})
	equal(t, before, since(), "connection of the producer")
}

func TestRightsComeAndGo(t *testing.T) {
	needsAccessControl(t)
	namespace := newGuardedNamespace(t)
	topic := "persistent://" + namespace + "/t"
	client := newGuardedClient(t, pulsar.NewAuthenticationToken(token(t, "bob", 0)), true)
	mayProduce := func() bool {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		if err == nil {
			producer.Close()
		}
		return err == nil
	}
	equal(t, false, mayProduce(), "before the grant")
	grant(t, namespace, "bob", `["consume"]`)
	equal(t, false, mayProduce(), "with consume")
	newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic}).Close()
	grant(t, namespace, "bob", `["produce"]`)
	equal(t, true, mayProduce(), "with produce")
	revoke(t, namespace, "bob")
	equal(t, false, mayProduce(), "after it was revoked")
}
