package interop;

import static interop.Check.*;

import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.client.impl.auth.AuthenticationTls;
import org.apache.pulsar.client.impl.auth.oauth2.AuthenticationFactoryOAuth2;

/** Who gets in and what they may do, at a server that trusts nobody: AUTH_FOLDER tells what it trusts. */
final class Access {
    private static final Path FOLDER = Server.AUTH_FOLDER;
    private static final String URL_TLS = System.getenv("SERVICE_URL_TLS");

    private Access() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        if (FOLDER == null) {
            return;
        }
        scenarios.put("logins", server -> logins(server, false));
        scenarios.put("logins over TLS", server -> logins(server, true));
        scenarios.put("strangers", Access::strangers);
        scenarios.put("renewed tokens", Access::renewal);
        scenarios.put("rights come and go", Access::rights);
        scenarios.put("trust in the server", Access::trust);
    }

    private static void logins(Server server, boolean tls) throws Exception {
        String token = token("alice", 0);
        Path file = Files.createTempFile("token", "");
        Files.writeString(file, token);
        Map<String, Authentication> logins = new LinkedHashMap<>();
        logins.put("token", AuthenticationFactory.token(token));
        logins.put("supplier", AuthenticationFactory.token(() -> token));
        logins.put("file", AuthenticationFactory.create(
                "org.apache.pulsar.client.impl.auth.AuthenticationToken", file.toUri().toString()));
        var basic = new AuthenticationBasic();
        basic.configure("{\"userId\":\"alice\",\"password\":\"alice-password\"}");
        logins.put("password", basic);
        if (!Files.exists(FOLDER.resolve("without-openid"))) {
            String port = Files.readString(FOLDER.resolve("issuer.port")).strip();
            logins.put("OAuth2", AuthenticationFactoryOAuth2.clientCredentials(
                    URI.create("http://127.0.0.1:" + port).toURL(),
                    FOLDER.resolve("alice.json").toUri().toURL(), "us"));
        }
        if (tls) {
            logins.put("certificate", new AuthenticationTls(
                    FOLDER.resolve("alice.pem").toString(), FOLDER.resolve("alice.key").toString()));
        }
        for (var each : logins.entrySet()) {
            String namespace = namespace(server);
            String topic = "persistent://" + namespace + "/t";
            try (PulsarClient client = client(server, tls).authentication(each.getValue()).build()) {
                fails(PulsarClientException.AuthorizationException.class,
                        () -> client.newProducer().topic(topic).create(), each.getKey() + " without a grant");
                grant(server, namespace, "alice", "[\"produce\",\"consume\"]");
                try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                        Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
                    send(producer, 0, 10);
                    equal(numbers(0, 10), texts(take(consumer, 10)), each.getKey());
                }
            }
        }
        Files.delete(file);
    }

    private static void strangers(Server server) throws Exception {
        var wrong = new AuthenticationBasic();
        wrong.configure("{\"userId\":\"alice\",\"password\":\"wrong\"}");
        Map<String, Authentication> logins = new LinkedHashMap<>();
        logins.put("nonsense", AuthenticationFactory.token("nonsense"));
        logins.put("expired", AuthenticationFactory.token(token("admin", -60)));
        logins.put("wrong password", wrong);
        for (var each : logins.entrySet()) {
            try (PulsarClient client = client(server, false).authentication(each.getValue()).build()) {
                fails(PulsarClientException.AuthenticationException.class,
                        () -> client.newProducer().topic(server.topic()).create(), each.getKey());
            }
        }
        try (PulsarClient client = client(server, false).build()) {
            fails(PulsarClientException.AuthenticationException.class,
                    () -> client.newProducer().topic(server.topic()).create(), "no credentials");
        }
    }

    private static void renewal(Server server) throws Exception {
        String topic = server.topic();
        var supplied = new AtomicInteger();
        Authentication login = AuthenticationFactory.token(() -> {
            supplied.incrementAndGet();
            return token("admin", 2);
        });
        try (PulsarClient client = client(server, false).authentication(login).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            String since = producer.getLastDisconnectedTimestamp() + " " + consumer.getLastDisconnectedTimestamp();
            int first = supplied.get();
            eventually(() -> {
                send(producer, 0, 1);
                equal(numbers(0, 1), texts(take(consumer, 1)), "message");
                return supplied.get() >= first + 3;
            }, "three renewals");
            equal(since, producer.getLastDisconnectedTimestamp() + " " + consumer.getLastDisconnectedTimestamp(),
                    "when it was disconnected");
        }
    }

    private static void rights(Server server) throws Exception {
        String namespace = namespace(server);
        String topic = "persistent://" + namespace + "/t";
        try (PulsarClient client =
                client(server, true).authentication(AuthenticationFactory.token(token("bob", 0))).build()) {
            var refused = PulsarClientException.AuthorizationException.class;
            fails(refused, () -> client.newProducer().topic(topic).create(), "before the grant");
            grant(server, namespace, "bob", "[\"consume\"]");
            fails(refused, () -> client.newProducer().topic(topic).create(), "with consume");
            client.newConsumer().topic(topic).subscriptionName("s").subscribe().close();
            grant(server, namespace, "bob", "[\"produce\"]");
            client.newProducer().topic(topic).create().close();
            fails(refused, () -> client.newConsumer().topic(topic).subscriptionName("s").subscribe(), "with produce");
            server.adminPath("DELETE", "/admin/v2/namespaces/" + namespace + "/permissions/bob", "");
            fails(refused, () -> client.newProducer().topic(topic).create(), "after it was revoked");
        }
    }

    private static void trust(Server server) throws Exception {
        Authentication login = AuthenticationFactory.token(token("admin", 0));
        String foreign = FOLDER.resolve("foreign").resolve("foreign.pem").toString();
        try (PulsarClient client = client(server, true).authentication(login).tlsTrustCertsFilePath(foreign)
                .lookupTimeout(3, TimeUnit.SECONDS).operationTimeout(3, TimeUnit.SECONDS).build()) {
            fails(PulsarClientException.class, () -> client.newProducer().topic(server.topic()).create(), "authority");
        }
        try (PulsarClient client = client(server, true).authentication(login).tlsTrustCertsFilePath(foreign)
                .allowTlsInsecureConnection(true).enableTlsHostnameVerification(false).build()) {
            client.newProducer().topic(server.topic()).create().close();
        }
        // Not under a wrong name: this client looks up the name of an address, and takes that for the host's
    }

    private static ClientBuilder client(Server server, boolean tls) {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(tls ? URL_TLS : System.getenv("SERVICE_URL"));
        return tls
                ? builder.tlsTrustCertsFilePath(FOLDER.resolve("authority.pem").toString()).enableTlsHostnameVerification(true)
                : builder;
    }

    private static String namespace(Server server) throws Exception {
        String tenant = "java-" + UUID.randomUUID();
        server.adminPath("PUT", "/admin/v2/tenants/" + tenant, "{\"adminRoles\":[],\"allowedClusters\":[\"standalone\"]}");
        server.adminPath("PUT", "/admin/v2/namespaces/" + tenant + "/ns", "");
        return tenant + "/ns";
    }

    private static void grant(Server server, String namespace, String role, String actions) throws Exception {
        server.adminPath("POST", "/admin/v2/namespaces/" + namespace + "/permissions/" + role, actions);
    }

    /** Proves a role; lifetime 0 has no end. */
    private static String token(String role, int lifetimeSeconds) {
        String end = lifetimeSeconds == 0
                ? "" : ",\"exp\":" + (System.currentTimeMillis() / 1000 + lifetimeSeconds + 1);
        String text = encode("{\"alg\":\"HS256\"}".getBytes(StandardCharsets.UTF_8)) + "."
                + encode(("{\"sub\":\"" + role + "\"" + end + "}").getBytes(StandardCharsets.UTF_8));
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(Files.readAllBytes(FOLDER.resolve("secret.key")), "HmacSHA256"));
            return text + "." + encode(mac.doFinal(text.getBytes(StandardCharsets.UTF_8)));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static String encode(byte[] data) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(data);
    }
}
