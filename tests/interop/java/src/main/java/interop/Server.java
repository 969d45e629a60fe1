package interop;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;

/** The server under test: clients of it, its admin API, names that nobody else uses; one for all scenarios. */
final class Server {
    /** What a server that trusts nobody trusts (tests/interop/auth_material.py); null: any other server. */
    static final Path AUTH_FOLDER =
            System.getenv("AUTH_FOLDER") == null ? null : Path.of(System.getenv("AUTH_FOLDER"));

    final PulsarClient client;
    private PulsarClient withTransactions;
    private final String adminUrl;
    private final HttpClient http = HttpClient.newHttpClient();

    private final String serviceUrl;

    Server(String serviceUrl, String adminUrl) throws Exception {
        this.serviceUrl = serviceUrl;
        this.client = builder().build();
        this.adminUrl = adminUrl;
    }

    /** A client that begins transactions. */
    PulsarClient withTransactions() throws Exception {
        if (withTransactions == null) {
            withTransactions = builder().enableTransaction(true).build();
        }
        return withTransactions;
    }

    /** Whether it is Apache Pulsar: docs/decisions/0081-transactions.md says what differs on purpose. */
    boolean isPulsar() throws Exception {
        return !adminPath("GET", "/admin/v2/brokers/version", "").startsWith("0.");
    }

    private ClientBuilder builder() throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(serviceUrl);
        if (AUTH_FOLDER != null) {
            builder.authentication(AuthenticationFactory.token(adminToken()))
                    .tlsTrustCertsFilePath(AUTH_FOLDER.resolve("authority.pem").toString())
                    .enableTlsHostnameVerification(true);
        }
        return builder;
    }

    String topic() {
        return "persistent://public/default/java-" + UUID.randomUUID();
    }

    String partitioned(int partitions) throws Exception {
        String topic = topic();
        admin("PUT", topic, "/partitions", Integer.toString(partitions));
        return topic;
    }

    /** Calls the admin API on a topic; the answer's body. Fails on any status but success. */
    String admin(String method, String topic, String suffix, String body) throws Exception {
        return adminPath(method, "/admin/v2/" + topic.replace("://", "/") + suffix, body);
    }

    String adminPath(String method, String path, String body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(adminUrl + path))
                .header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body));
        if (AUTH_FOLDER != null) {
            request.header("Authorization", "Bearer " + adminToken());
        }
        HttpResponse<String> answer = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
        Check.that(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        return answer.body();
    }

    private static String adminToken() throws IOException {
        return Files.readString(AUTH_FOLDER.resolve("admin.token"));
    }
}
