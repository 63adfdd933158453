package clientconf

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

// selfSigned returns a certificate and its key as PEM, the same each time.
func selfSigned(t testing.TB) (cert, key string) {
	t.Helper()
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), IsCA: true}
	der, err := x509.CreateCertificate(nil, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// FuzzClientTLS reads certificates and keys from client properties: what is accepted never trusts more than what is
// given, never goes below TLS 1.2, and no error tells a key.
func FuzzClientTLS(f *testing.F) {
	cert, key := selfSigned(f)
	f.Add(cert, cert, key, "", "https")
	f.Add(cert+cert, "", "", "TLSv1.3", "")
	f.Add("", cert+key, "", "TLSv1.2,TLSv1.3", " HTTPS ")
	f.Add("no PEM", cert, key, "TLSv1.1", "")
	f.Add(cert, cert, strings.Replace(key, "PRIVATE", "ENCRYPTED PRIVATE", 2), "", "")
	f.Add(cert, cert, cert, "", "")
	f.Add(cert, key, key, "", "ldaps")
	f.Fuzz(func(t *testing.T, ca, chain, key, versions, algorithm string) {
		if strings.Contains(ca+chain+key, "${") {
			return // would read files and the environment
		}
		props := map[string]string{
			"security.protocol": "SSL", "ssl.enabled.protocols": versions, "ssl.endpoint.identification.algorithm": algorithm,
			"ssl.truststore.certificates": ca,
		}
		if chain != "" || key != "" {
			props["ssl.keystore.certificate.chain"], props["ssl.keystore.key"] = chain, key
		}
		secure, err := ClientTLS(props, nil)
		if (secure == nil) != (err != nil) {
			t.Fatalf("a configuration (%v) next to %v", secure != nil, err)
		}
		if err != nil {
			if key = strings.TrimSpace(key); len(key) > 40 && strings.Contains(err.Error(), key) {
				t.Fatalf("the error tells the key: %v", err)
			}
			return
		}
		c := secure()
		if c.RootCAs == nil || c.MinVersion < tls.VersionTLS12 || c.MaxVersion != 0 && c.MaxVersion < c.MinVersion {
			t.Fatalf("versions %#x to %#x, own authorities: %v", c.MinVersion, c.MaxVersion, c.RootCAs != nil)
		}
		if c.InsecureSkipVerify != (c.VerifyConnection != nil) || c.InsecureSkipVerify && strings.TrimSpace(algorithm) != "" {
			t.Fatalf("identification by %q: certificates are not checked", algorithm)
		}
		if own := chain != "" || key != ""; own != (len(c.Certificates) == 1) {
			t.Fatalf("%d certificates of our own", len(c.Certificates))
		}
	})
}
