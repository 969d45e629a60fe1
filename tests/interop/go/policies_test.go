package interop

import (
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// newNamespace makes a namespace with one topic through the official admin library.
func newNamespace(t *testing.T) (pulsaradmin.Client, string, utils.TopicName) {
	t.Helper()
	config := &pulsaradmin.Config{WebServiceURL: setting("ADMIN_URL", "http://localhost:8080")}
	if folder := authFolder(); folder != "" {
		config.TokenFile = folder + "/admin.token"
		config.TLSTrustCertsFilePath = folder + "/authority.pem"
	}
	client, err := pulsaradmin.NewClient(config)
	must(t, err)
	namespace := fmt.Sprintf("public/go-%d", time.Now().UnixNano())
	must(t, client.Namespaces().CreateNsWithPolices(namespace, *utils.NewDefaultPolicies()))
	topic, err := utils.GetTopicName("persistent://" + namespace + "/t")
	must(t, err)
	must(t, client.Topics().Create(*topic, 0))
	t.Cleanup(func() {
		must(t, client.Topics().Delete(*topic, true, true))
		must(t, client.Namespaces().DeleteNamespace(namespace))
	})
	return client, namespace, *topic
}

func TestPoliciesOfANamespace(t *testing.T) {
	client, namespace, _ := newNamespace(t)
	name, err := utils.GetNamespaceName(namespace)
	must(t, err)
	namespaces := client.Namespaces()

	retention, err := namespaces.GetRetention(namespace)
	must(t, err)
	if retention != nil && (retention.RetentionSizeInMB != 0 || retention.RetentionTimeInMinutes != 0) {
		t.Fatalf("retention before it is set: %+v", retention)
	}
	must(t, namespaces.SetRetention(namespace, utils.NewRetentionPolicies(10, 20)))
	retention, err = namespaces.GetRetention(namespace)
	must(t, err)
	equal(t, utils.NewRetentionPolicies(10, 20), *retention, "retention")

	quota := utils.NewBacklogQuota(1<<20, 60, utils.ProducerException)
	must(t, namespaces.SetBacklogQuota(namespace, quota, utils.DestinationStorage))
	quotas, err := namespaces.GetBacklogQuotaMap(namespace)
	must(t, err)
	equal(t, quota.LimitSize, quotas[utils.DestinationStorage].LimitSize, "quota")
	tooMuch := utils.NewBacklogQuota(1<<30, 60, utils.ProducerException)
	if namespaces.SetBacklogQuota(namespace, tooMuch, utils.DestinationStorage) == nil {
		t.Fatal("a quota above retention was accepted")
	}
	must(t, namespaces.RemoveBacklogQuota(namespace))

	rate := utils.PublishRate{PublishThrottlingRateInMsg: 5, PublishThrottlingRateInByte: -1}
	must(t, namespaces.SetPublishRate(*name, rate))
	stored, err := namespaces.GetPublishRate(*name)
	must(t, err)
	equal(t, rate, stored, "publish rate")

	must(t, namespaces.SetNamespaceMessageTTL(namespace, 60))
	seconds, err := namespaces.GetNamespaceMessageTTL(namespace)
	must(t, err)
	equal(t, 60, seconds, "time to live")
	must(t, namespaces.SetMaxConsumersPerTopic(*name, 7))
	limit, err := namespaces.GetMaxConsumersPerTopic(*name)
	must(t, err)
	equal(t, 7, limit, "consumers")
	must(t, namespaces.SetEncryptionRequiredStatus(*name, false))
	must(t, namespaces.SetSchemaCompatibilityStrategy(*name, utils.SchemaCompatibilityStrategyFull))
}

func TestPoliciesOfATopic(t *testing.T) {
	client, _, topic := newNamespace(t)
	topics := client.Topics()

	must(t, topics.SetMessageTTL(topic, 30))
	eventually(t, "time to live", func() bool { // Pulsar's topics learn of it a little later
		seconds, err := topics.GetMessageTTL(topic)
		must(t, err)
		return seconds == 30
	})
	must(t, topics.RemoveMessageTTL(topic))

	must(t, topics.SetMaxConsumers(topic, 3))
	eventually(t, "consumers", func() bool {
		limit, err := topics.GetMaxConsumers(topic)
		must(t, err)
		return limit == 3
	})
	rate := utils.DispatchRateData{
		DispatchThrottlingRateInMsg: 10, DispatchThrottlingRateInByte: 100, RatePeriodInSecond: 1,
	}
	must(t, topics.SetDispatchRate(topic, rate))
	eventually(t, "dispatch rate", func() bool {
		stored, err := topics.GetDispatchRate(topic)
		must(t, err)
		return stored != nil && *stored == rate
	})
	must(t, topics.RemoveDispatchRate(topic))
	eventually(t, "no dispatch rate", func() bool {
		stored, err := topics.GetDispatchRate(topic)
		must(t, err)
		return stored == nil || *stored != rate
	})
}
